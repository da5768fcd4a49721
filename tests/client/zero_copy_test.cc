// What travels between processes of one host without being copied, and what becomes of it when
// somebody keeps it, changes it or dies.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/memory_place.h"
#include "core/base/unique_fd.h"
#include "core/carrier/carrier.h"
#include "core/runtime/runtime.h"
#include "core/runtime/worker_memory.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

constexpr int64_t kElements = int64_t{4} << 20;  // 16 MiB of f32
constexpr size_t kBytes = kElements * sizeof(float);
constexpr absl::Duration kPatience = absl::Seconds(60);

// Waits until `holds`. Returns false if that takes too long for any machine.
bool Eventually(const std::function<bool()>& holds) {
  for (const absl::Time until = absl::Now() + kPatience; absl::Now() < until;) {
    if (holds()) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return holds();
}

// Returns numbers that look random and are the same in every run.
Tensor Numbers(const Shape& shape, uint32_t seed) {
  Tensor tensor = Must(Tensor::Empty(shape, DType::kF32));
  float* out = tensor.mutable_data<float>();
  for (int64_t i = 0; i < shape.NumElements(); ++i) {
    seed = seed * 1664525 + 1013904223;
    out[i] = static_cast<float>(seed >> 8) / (1 << 23) - 1;
  }
  return tensor;
}

std::string BytesOf(const Variable& variable) {
  return std::string(Must(variable.tensor().Contiguous()).AsBuffer().view());
}

// An owner and a trainer with a parameter, a table and an optimizer.
class World {
 public:
  explicit World(bool shared_memory, int64_t elements = kElements, size_t owner_budget = 0) {
    worker::RuntimeOptions owner;
    owner.shared_memory = shared_memory;
    owner.memory = worker::NewWorkerBudget(owner_budget, shared_memory, nullptr);
    owner_ = std::make_unique<TestOwner>("owner0", std::move(owner));
    WorkerOptions trainer;
    trainer.name = "trainer0";
    trainer.owners = {owner_->address()};
    trainer.shared_memory = shared_memory;
    trainer_ = Must(Worker::Start(std::move(trainer)));
    w_ = MakeParameter(*trainer_, "owner0", "w", Numbers({elements}, 1));
    Sgd sgd;
    sgd.lr = 0.25;
    optimizer_ = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {w_}));
  }

  Variable Pull() { return *Must(trainer_->ToHere({w_}))[0].As<Variable>(); }
  // A step with the gradient 2 w, computed by the trainer.
  void Step() {
    Context context = Must(trainer_->NewContext());
    const auto values = Must(trainer_->ToHere({w_}, context));
    const absl::Status passed = context.Backward({Sum(values[0] * values[0])});
    ASSERT_TRUE(passed.ok()) << passed;
    const absl::Status stepped = optimizer_->Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
  }
  // The result of a program on the owner, of as many elements as the parameter has.
  Variable Square() {
    const std::shared_ptr<const store::RemoteReference> w = w_.body();
    return *Must(trainer_->RpcSync("owner0", Function::Operator("mul", 2), {w, w}))[0]
                .As<Variable>();
  }
  Variable Rows() {
    if (!table_.has_value()) {
      CreateOptions rows;
      rows.rows = true;
      rows.requires_grad = true;
      table_ = Must(trainer_->GetOrCreate("owner0", "table", Full({1 << 16, 64}, 1), rows));
    }
    Tensor ids = Must(Tensor::Empty({1 << 15}, DType::kI64));
    for (int64_t i = 0; i < ids.NumElements(); ++i) ids.mutable_data<int64_t>()[i] = i * 2;
    return Must(trainer_->LookUpRows({{*table_, ids}}))[0];
  }

  carrier::SharedTraffic OwnersTraffic() const {
    return owner_->runtime().options().carrier->shared_traffic();
  }
  carrier::SharedTraffic TrainersTraffic() const {
    return RuntimeOf(*trainer_).options().carrier->shared_traffic();
  }
  uint64_t Copied() const {
    const carrier::SharedTraffic owner = OwnersTraffic(), trainer = TrainersTraffic();
    return owner.copied_in + owner.copied_out + trainer.copied_in + trainer.copied_out;
  }
  // Waits until nothing is lent any more.
  bool AllReturned() const {
    return Eventually(
        [this] { return OwnersTraffic().lent_now == 0 && TrainersTraffic().lent_now == 0; });
  }

  TestOwner& owner() { return *owner_; }
  Worker& trainer() { return *trainer_; }
  const RRef& w() const { return w_; }

 private:
  std::unique_ptr<TestOwner> owner_;
  std::unique_ptr<Worker> trainer_;
  RRef w_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
  std::optional<RRef> table_;
};

class ZeroCopyTest : public testing::Test {
 protected:
  // Runs `exchange` once more after it has run, and expects that the second time `lent` bytes are
  // read where they are, and none is copied.
  void ExpectNoCopies(const std::function<void()>& exchange, uint64_t lent) {
    exchange();
    ASSERT_TRUE(world_.AllReturned());
    const uint64_t copied = world_.Copied();
    const uint64_t before = world_.OwnersTraffic().lent + world_.TrainersTraffic().lent;
    exchange();
    EXPECT_EQ(world_.Copied(), copied);
    EXPECT_EQ(world_.OwnersTraffic().lent + world_.TrainersTraffic().lent - before, lent);
  }

  World world_{/*shared_memory=*/true};
};

TEST_F(ZeroCopyTest, APullIsReadWhereItIs) {
  ExpectNoCopies(
      [this] { EXPECT_EQ(world_.Pull().tensor().place().kind(), MemoryPlace::Kind::kForeign); },
      kBytes);
}

TEST_F(ZeroCopyTest, AStepReadsTheGradientWhereTheTrainerComputedIt) {
  ExpectNoCopies([this] { world_.Step(); }, 2 * kBytes);  // the pull and the gradient
}

TEST_F(ZeroCopyTest, TheResultOfAProgramIsReadWhereItIs) {
  ExpectNoCopies([this] { world_.Square(); }, kBytes);
}

TEST_F(ZeroCopyTest, RowsAreReadWhereTheOwnerGatheredThem) {
  const uint64_t ids = (uint64_t{1} << 15) * sizeof(int64_t);
  const uint64_t rows = (uint64_t{1} << 15) * 64 * sizeof(float);
  ExpectNoCopies([this] { world_.Rows(); }, ids + rows);
}

TEST_F(ZeroCopyTest, TensorsOfMiddlingSizeDoNotKeepLargeOnesFromBeingLent) {
  constexpr int64_t kMiddling = 20'000;  // too much for a frame, too little for a segment
  std::vector<RRef> model = {world_.w()};
  for (const char* name : {"a", "b", "c"})
    model.push_back(MakeParameter(world_.trainer(), "owner0", name, Numbers({kMiddling}, 2)));
  const uint64_t lent = world_.OwnersTraffic().lent;
  const uint64_t copied = world_.Copied();
  const Values values = Must(world_.trainer().ToHere(model));
  EXPECT_GE(world_.OwnersTraffic().lent - lent, kBytes);
  EXPECT_LE(world_.Copied() - copied, 3 * kMiddling * sizeof(float));
  for (size_t i = 1; i < model.size(); ++i) {
    EXPECT_TRUE(BytesOf(*values[i].As<Variable>()) == BytesOf(Numbers({kMiddling}, 2)));
  }
}

// Values of many small tensors travel in one block, which is lent if it is large enough: its bytes
// are gathered, and not copied again.
TEST_F(ZeroCopyTest, ManySmallParametersAndTheirGradientsAreLentTogether) {
  constexpr int64_t kParameters = 512, kElementsOfEach = 256;
  constexpr uint64_t kBytesOfAll = kParameters * kElementsOfEach * sizeof(float);
  std::vector<RRef> model;
  for (int64_t i = 0; i < kParameters; ++i) {
    model.push_back(MakeParameter(world_.trainer(), "owner0", absl::StrCat("small", i),
                                  Numbers({kElementsOfEach}, static_cast<uint32_t>(i))));
  }
  Sgd sgd;
  sgd.lr = 0.25;
  const auto optimizer = Must(DistributedOptimizer::Create(world_.trainer(), "small", sgd, model));
  ExpectNoCopies([&] { Must(world_.trainer().ToHere(model)); }, kBytesOfAll);
  ExpectNoCopies(
      [&] {
        Context context = Must(world_.trainer().NewContext());
        std::vector<Variable> losses;
        for (const Variable& w : Must(world_.trainer().ToHere(model, context)))
          losses.push_back(Sum(w * w));
        const absl::Status passed = context.Backward(losses);
        ASSERT_TRUE(passed.ok()) << passed;
        const absl::Status stepped = optimizer->Step(context);
        ASSERT_TRUE(stepped.ok()) << stepped;
      },
      2 * kBytesOfAll);
  const Values values = Must(world_.trainer().ToHere(model));
  for (int64_t i = 0; i < kParameters; ++i) {
    const Tensor before = Numbers({kElementsOfEach}, static_cast<uint32_t>(i));
    const Tensor after = values[static_cast<size_t>(i)].As<Variable>()->tensor();
    for (int64_t j = 0; j < kElementsOfEach; ++j) {  // two steps, each of which halves it
      ASSERT_EQ(after.data<float>()[j], before.data<float>()[j] / 4) << i << " " << j;
    }
  }
}

// Returns the results of one of everything, as bytes.
std::vector<std::string> ResultsOver(bool shared_memory) {
  World world(shared_memory);
  std::vector<std::string> results = {BytesOf(world.Pull()), BytesOf(world.Square())};
  world.Step();
  world.Step();
  results.push_back(BytesOf(world.Pull()));
  results.push_back(BytesOf(world.Square()));
  results.push_back(BytesOf(world.Rows()));
  EXPECT_EQ(world.OwnersTraffic().lent > 0, shared_memory);
  return results;
}

TEST(ZeroCopyResultsTest, AreThoseOfTheNetworkBitForBit) {
  EXPECT_TRUE(ResultsOver(true) == ResultsOver(false));
}

TEST_F(ZeroCopyTest, HeldVersionsDoNotChangeWhileTheOwnerSteps) {
  std::vector<Variable> held;
  std::vector<std::string> before;
  for (int i = 0; i < 6; ++i) {  // more than the owner keeps old versions for
    held.push_back(world_.Pull());
    before.push_back(BytesOf(held.back()));
    world_.Step();
  }
  for (size_t i = 0; i < held.size(); ++i) EXPECT_TRUE(BytesOf(held[i]) == before[i]) << i;
  EXPECT_TRUE(before[0] != before[5]);
  held.clear();
  EXPECT_TRUE(world_.AllReturned());
}

TEST_F(ZeroCopyTest, HeldVersionsOutliveTheirOwner) {
  const Variable held = world_.Pull();
  const std::string before = BytesOf(held);
  world_.owner().runtime().Shutdown(absl::ZeroDuration());
  EXPECT_TRUE(BytesOf(held) == before);
}

// A trainer that never lets go of anything cannot make the owner keep more than a quarter of its
// budget for it, and cannot keep the owner from stepping and answering.
TEST(ZeroCopyLimitsTest, AThousandPullsAreKept) {
  constexpr int64_t kSmaller = int64_t{64} << 10;  // 256 KiB
  constexpr size_t kBudget = size_t{64} << 20;
  World world(/*shared_memory=*/true, kSmaller, kBudget);
  Must(world.trainer().Assign(world.w(), *Tensor::Zeros({kSmaller}, DType::kF32)));
  std::vector<Variable> held;
  for (int i = 0; i < 1000; ++i) {
    held.push_back(world.Pull());
    Must(world.trainer().Assign(
        world.w(), *Tensor::Full({kSmaller}, DType::kF32, static_cast<double>(i + 1))));
    ASSERT_LE(world.OwnersTraffic().lent_now, kBudget / 4);
  }
  EXPECT_GT(world.OwnersTraffic().lent_now, 0u);
  EXPECT_GT(world.OwnersTraffic().copied_out, 0u);
  for (int i = 0; i < 1000; ++i) {
    const float* const elements = held[static_cast<size_t>(i)].tensor().data<float>();
    EXPECT_TRUE(std::all_of(elements, elements + kSmaller, [&](float x) {
      return x == static_cast<float>(i);
    })) << i;
  }
  held.clear();
  EXPECT_TRUE(world.AllReturned());
}

// Nor can it take the memory that the owner needs for the results of others.
TEST(ZeroCopyLimitsTest, ResultsAreKeptWhereValuesTakeMostOfTheBudget) {
  constexpr int64_t kSmaller = int64_t{64} << 10;  // 256 KiB
  constexpr size_t kBudget = size_t{64} << 20;
  World world(/*shared_memory=*/true, kSmaller, kBudget);
  std::vector<RRef> values;  // of 4 MiB each
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}) {
    values.push_back(
        Must(world.trainer().GetOrCreate("owner0", name, Full({int64_t{1} << 20}, 0))));
  }
  const std::string expected = BytesOf(world.Square());
  std::vector<Variable> held;
  for (int i = 0; i < 200; ++i) {
    held.push_back(world.Square());
    EXPECT_TRUE(BytesOf(held.back()) == expected) << i;
  }
  EXPECT_GT(world.OwnersTraffic().lent_now, 0u);
  EXPECT_GT(world.OwnersTraffic().copied_out, 0u);
  held.clear();
  EXPECT_TRUE(world.AllReturned());
}

// A process that pulls a parameter and keeps it until it is killed (zero_copy_holder.cc).
class Holder {
 public:
  explicit Holder(const std::string& address) {
    int to[2], from[2];
    EXPECT_EQ(pipe(to), 0);
    EXPECT_EQ(pipe(from), 0);
    process_ = fork();
    if (process_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
      constexpr char kHolder[] = "tests/client/zero_copy_holder";
      execl(kHolder, kHolder, address.c_str(), nullptr);
      _exit(127);
    }
    to_ = UniqueFd(to[1]);
    from_ = UniqueFd(from[0]);
    close(to[0]);
    close(from[1]);
  }
  ~Holder() { Kill(); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  // Returns the next thing that it says: 'h' once it holds the parameter. 0 if it has ended.
  char Said() {
    char said = 0;
    return read(from_.get(), &said, 1) == 1 ? said : '\0';
  }
  // Returns whether what it holds is what it pulled.
  bool HoldsTheSame() {
    EXPECT_EQ(write(to_.get(), "?", 1), 1);
    return Said() == 'y';
  }
  void Signal(int signal) { EXPECT_EQ(kill(process_, signal), 0); }
  void Kill() {
    if (process_ <= 0) return;
    Signal(SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  pid_t process_ = 0;
  UniqueFd to_, from_;
};

TEST_F(ZeroCopyTest, AProcessThatIsKilledWhileItHoldsLeasesHarmsNobody) {
  Holder holder(world_.owner().address().address);
  ASSERT_EQ(holder.Said(), 'h');
  EXPECT_GE(world_.OwnersTraffic().lent_now, kBytes);
  for (int i = 0; i < 4; ++i) world_.Step();
  EXPECT_TRUE(holder.HoldsTheSame());
  holder.Kill();
  EXPECT_TRUE(world_.AllReturned());
  const std::string before = BytesOf(world_.Pull());
  for (int i = 0; i < 4; ++i) world_.Step();
  EXPECT_TRUE(BytesOf(world_.Pull()) != before);
}

// The owner gives up a process that is stopped, but once it goes on, the process still reads what
// it held.
TEST_F(ZeroCopyTest, WhatAProcessStillReadsIsNotRewrittenAfterItsLinkHasEnded) {
  Holder holder(world_.owner().address().address);
  ASSERT_EQ(holder.Said(), 'h');
  world_.Step();
  ASSERT_TRUE(world_.OwnersTraffic().lent_now > 0);
  holder.Signal(SIGSTOP);
  ASSERT_TRUE(world_.AllReturned());
  for (int i = 0; i < 4; ++i) world_.Step();
  holder.Signal(SIGCONT);
  EXPECT_TRUE(holder.HoldsTheSame());
}

}  // namespace
}  // namespace psd
