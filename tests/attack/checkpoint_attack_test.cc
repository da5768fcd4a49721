// Peers begin saves and loads of large values and finish none of them, while another client trains.
// The flags are those of memory_attack_test.

#include <memory>
#include <vector>

#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/future.h"
#include "core/checkpoint/safetensors_codec.h"
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/checkpoint_service.h"
#include "core/services/checkpoint/checkpoint_types.h"
#include "core/services/checkpoint/transfer_table.h"
#include "gtest/gtest.h"
#include "tests/attack/memory_attack.h"
#include "tests/client/test_world.h"

namespace psd::attack {
namespace {

class CheckpointAttackTest : public MemoryAttackTest {
 protected:
  static constexpr int kAttackers = 14;
  static constexpr int kTransfers = 2 * services::TransferTable::kPerSession;  // for each attacker
  static constexpr int64_t kRows = 1024, kMebibytes = 32, kWidth = kMebibytes << 8;

  // Makes the attack. `begin` begins one transfer of kMebibytes for a worker.
  template <typename Begin>
  void BeginTransfers(const Begin& begin) {
    std::vector<std::unique_ptr<Worker>> attackers;
    Repeat(
        [&] {
          Answers answers;
          answers.asked_bytes = size_t{kAttackers} * kTransfers * kMebibytes * kMiB;
          std::vector<decltype(begin(*attackers[0]))> begun;
          for (int i = 0; i < kAttackers; ++i) {
            attackers.push_back(NewAttacker());
            for (int j = 0; j < kTransfers; ++j) begun.push_back(begin(*attackers.back()));
          }
          for (const auto& transfer : begun) answers.Count(transfer.Wait().status());
          EXPECT_GT(answers.done, 0);
          EXPECT_GT(answers.refused, 0);
          return answers;
        },
        [&] { attackers.clear(); });
  }
};

TEST_F(CheckpointAttackTest, SavesThatFetchNothing) {
  const auto attacker = NewAttacker();
  CreateOptions options;
  options.rows = true;
  const RRef table = Must(attacker->GetOrCreate(name(), "table", Zeros({kRows, kWidth}), options));
  services::ExportItem item;
  item.value = table.value_id();
  item.rows = kRows;
  BeginTransfers([&](Worker& worker) {
    worker::Runtime& runtime = RuntimeOf(worker);
    return runtime.checkpoints().Hold(name(), item, runtime.ids().Next(), {});
  });
}

TEST_F(CheckpointAttackTest, LoadsThatFillNothing) {
  const checkpoint::TensorSpec room{"", DType::kF32, Shape{kRows, kWidth}};
  BeginTransfers([&](Worker& worker) {
    worker::Runtime& runtime = RuntimeOf(worker);
    return runtime.checkpoints().MakeRoom(name(), runtime.ids().Next(), {room}, {});
  });
}

}  // namespace
}  // namespace psd::attack
