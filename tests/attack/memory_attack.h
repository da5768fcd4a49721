#pragma once

// Attacks on the memory of an owner, while another client trains. The program's flags say how often
// each attack is made (--rounds), and how many small objects it makes if it consists of small
// objects (--small).

#include <grpcpp/support/status.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "gtest/gtest.h"
#include "tests/attack/limited_owner.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

ABSL_DECLARE_FLAG(int, rounds);
ABSL_DECLARE_FLAG(int, small);

namespace psd::attack {

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kBudget = 256 * kMiB;
// The memory that an owner may keep once an attack is over: a sixteenth of the budget in blocks for
// reuse, a thirty-second in malloc, and as much again in the fragments of its heap.
inline constexpr size_t kKept = kBudget / 16 * 3;

// The answers to an attacker's calls.
struct Answers {
  size_t asked_bytes = 0;
  int done = 0;
  int refused = 0;

  void Count(const absl::Status& status) {
    if (status.ok()) return void(++done);
    ++refused;
    EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) << status;
  }
  void Count(const grpc::Status& status) {
    if (status.ok()) return void(++done);
    ++refused;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  }
};

// A client that trains as long as it exists. All of its steps must succeed.
class Honest {
 public:
  explicit Honest(const OwnerAddress& owner)
      : worker_(StartTrainer("honest", {owner})),
        training_(Must(crash::Training::Create(*worker_, {owner.name}, 1024))),
        thread_([this] { Train(); }) {}
  ~Honest() {
    stop_ = true;
    thread_.join();
  }
  Worker& worker() { return *worker_; }
  int steps() const { return steps_; }
  void AwaitSteps(int more) {
    const int wanted = steps_ + more;
    EXPECT_TRUE(crash::Eventually([&] { return steps_ >= wanted || stop_; }));
  }

 private:
  void Train() {
    while (!stop_) {
      absl::Status trained = training_.Pull();
      trained.Update(trained.ok() ? training_.Backward() : trained);
      trained.Update(trained.ok() ? training_.Step().status() : trained);
      if (!trained.ok()) {
        ADD_FAILURE() << "step " << steps_ << " of the other client: " << trained;
        stop_ = true;
      }
      ++steps_;
    }
  }

  const std::unique_ptr<Worker> worker_;
  crash::Training training_;
  std::atomic<bool> stop_{false};
  std::atomic<int> steps_{0};
  std::thread thread_;
};

class MemoryAttackTest : public testing::Test {
 protected:
  using Attack = std::function<Answers()>;

  // Makes the attack in rounds. `attack` returns the answers to its calls. What it holds on the
  // owner stays until `let_go` is called.
  void Repeat(
      const Attack& attack, const std::function<void()>& let_go = [] {}) {
    honest_.AwaitSteps(3);
    const size_t beginning = owner_.Resident();
    for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
      const size_t before = owner_.Resident();
      const uint64_t transit_before = Transit();
      const int steps_before = honest_.steps();
      const Answers answers = attack();
      honest_.AwaitSteps(3);
      const size_t during = owner_.Resident();
      const uint64_t transit_during = Transit();
      let_go();
      honest_.AwaitSteps(3);
      EXPECT_TRUE(owner_.Runs()) << "the daemon was killed";
      // If the limit is enforced, it does not count pages of files, which are resident too.
      if (!owner_.enforced()) {
        EXPECT_LE(owner_.MostResident(), owner_.limit_bytes());
      }
      if (HasFailure()) return;
      EXPECT_TRUE(crash::Eventually([&] { return Transit() <= transit_before + kMiB; }))
          << Transit() << " bytes in transit";
      EXPECT_TRUE(crash::Eventually([&] { return owner_.Resident() <= beginning + kKept; }))
          << owner_.Resident() << " bytes resident, " << beginning << " at the beginning";
      std::printf(
          "round %d: asked for %zu MiB under a limit of %zu MiB (%s), %d calls done, %d refused; "
          "resident MiB: %zu before, %zu held, %zu at most, %zu after; charged in transit KiB: %zu "
          "before, %zu held; the other client stepped %d times\n",
          round, answers.asked_bytes / kMiB, owner_.limit_bytes() / kMiB,
          owner_.enforced() ? "enforced" : "measured", answers.done, answers.refused, before / kMiB,
          during / kMiB, owner_.MostResident() / kMiB, owner_.Resident() / kMiB,
          size_t{transit_before} >> 10, size_t{transit_during} >> 10,
          honest_.steps() - steps_before);
      std::fflush(stdout);
    }
  }

  uint64_t Transit() {
    const auto status = crash::StatusOf(honest_.worker(), name());
    return status.ok() ? status->memory().transit_bytes() : 0;
  }
  std::string name() const { return owner_.address().name; }
  std::string address() const { return owner_.address().address; }
  std::unique_ptr<Worker> NewAttacker() {
    return StartTrainer(absl::StrCat("attacker", ++attackers_), {owner_.address()});
  }

  LimitedOwner owner_{kBudget};
  Honest honest_{owner_.address()};
  int attackers_ = 0;
};

}  // namespace psd::attack
