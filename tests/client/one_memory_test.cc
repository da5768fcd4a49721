// Processes of one host do not copy what they send each other: sender and receiver have the same
// memory. So the receiver sees what the sender writes there later.

#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/memory_place.h"
#include "core/base/status.h"
#include "core/carrier/carrier.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/leaf_gradients.h"
#include "core/runtime/runtime.h"
#include "core/services/calls/functions.h"
#include "core/store/store.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"

namespace psd {
namespace {

constexpr int64_t kElements = int64_t{256} << 10;  // 1 MiB of f32
constexpr int64_t kFew = 2048;                     // 8 KiB, too little for a segment

// Returns the place at which this process can write the memory that `borrowed` maps for reading.
// There is one, because maker and receiver of a test are in one process. Null if `borrowed` is in
// no memory that is shared.
float* MakersView(const float* borrowed) {
  struct Mapping {
    uintptr_t begin = 0, end = 0, offset = 0;
    char access[5] = {};
    uint64_t file = 0;
  };
  const auto address = reinterpret_cast<uintptr_t>(borrowed);
  Mapping seen;
  std::vector<Mapping> writable;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Mapping one;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNxPTR " %*s %" SCNu64,
                    &one.begin, &one.end, one.access, &one.offset, &one.file) != 5) {
      continue;
    }
    const std::string access = one.access;
    if (access == "r--s" && one.begin <= address && address < one.end) seen = one;
    if (access == "rw-s") writable.push_back(one);
  }
  const uintptr_t at = address - seen.begin + seen.offset;
  for (const Mapping& one : writable) {
    if (seen.file == 0 || one.file != seen.file) continue;
    if (one.offset <= at && at < one.offset + (one.end - one.begin))
      return reinterpret_cast<float*>(one.begin + (at - one.offset));
  }
  return nullptr;
}

class OneMemoryTest : public testing::Test {
 protected:
  worker::RuntimeOptions OwnersOptions() {
    worker::RuntimeOptions options;
    using services::FunctionCall;
    // Returns as many ones as it is told.
    const auto ones = [this](const FunctionCall&, Values arguments) -> absl::StatusOr<Values> {
      PSD_ASSIGN_OR_RETURN(Tensor tensor,
                           Tensor::Full({*arguments[0].As<int64_t>()}, DType::kF32, 1));
      made_.store(tensor.data<float>());
      return Values{std::move(tensor)};
    };
    EXPECT_TRUE(options.functions.Register("ones", ones).ok());
    // Adds 1 to the first element of its argument, at its maker, and returns what it then reads.
    const auto change = [this](const FunctionCall&, Values arguments) -> absl::StatusOr<Values> {
      const float* const read = arguments[0].As<Variable>()->tensor().data<float>();
      float* const written = MakersView(read);
      if (written == nullptr) return absl::FailedPreconditionError("the argument is a copy");
      *written += 1;
      made_.store(written);
      return Values{double{*read}};
    };
    EXPECT_TRUE(options.functions.Register("change", change).ok());
    return options;
  }

  static carrier::SharedTraffic TrafficOf(const worker::Runtime& runtime) {
    return runtime.options().carrier->shared_traffic();
  }
  carrier::SharedTraffic Traffic() {
    carrier::SharedTraffic traffic = TrafficOf(owner_.runtime());
    traffic += TrafficOf(RuntimeOf(*trainer_));
    return traffic;
  }
  static Function Ones() { return Function::Registered("ones"); }

  // Expects that `received` is the memory that its maker has at `made`.
  static void ExpectOneMemory(const Tensor& received, const float* made) {
    EXPECT_EQ(received.place().kind(), MemoryPlace::Kind::kForeign);
    const float* const read = received.data<float>();
    float* const written = MakersView(read);
    ASSERT_NE(written, nullptr) << "it is a copy";
    EXPECT_EQ(written, made);
    for (const int64_t element : {int64_t{0}, kElements / 2, kElements - 1}) {
      const float before = read[element];
      written[element] = before + 1;
      EXPECT_EQ(read[element], before + 1);
    }
  }

  // The latest tensor that "ones" has made or "change" has changed.
  std::atomic<const float*> made_{nullptr};
  TestOwner owner_{"owner0", OwnersOptions()};
  std::unique_ptr<Worker> trainer_ = StartTrainer("trainer0", {owner_.address()});
};

// The tensor of an entry of the owner's store.
Tensor Stored(const store::EntryPtr& entry) {
  return Must(entry->Read()).As<Variable>()->tensor();
}

TEST_F(OneMemoryTest, APulledParameterIsTheVersionThatTheOwnerStores) {
  const RRef w =
      MakeParameter(*trainer_, "owner0", "w", Must(Tensor::Zeros({kElements}, DType::kF32)));
  const Values pulled = Must(trainer_->ToHere({w}));
  const Tensor stored = Stored(Must(owner_.runtime().store().Lookup("w")));
  EXPECT_EQ(stored.place().kind(), MemoryPlace::Kind::kSegment);
  ExpectOneMemory(pulled[0].As<Variable>()->tensor(), stored.data<float>());
}

TEST_F(OneMemoryTest, TheOwnersStepReadsTheGradientOfTheTrainer) {
  const RRef w =
      MakeParameter(*trainer_, "owner0", "w", Must(Tensor::Zeros({kElements}, DType::kF32)));
  Sgd sgd;
  sgd.lr = 0.5;
  const auto optimizer = Must(DistributedOptimizer::Create(*trainer_, "main", sgd, {w}));
  Context context = Must(trainer_->NewContext());
  {
    const Variable here = Must(trainer_->ToHere({w}, context))[0];
    ASSERT_TRUE(context.Backward({Sum(here * here)}).ok());
  }
  const auto states = owner_.runtime().autograd().Contexts();
  ASSERT_EQ(states.size(), 1u);
  const auto gradients = states[0]->Gradients();
  const dist_autograd::LeafGradient* const gradient = gradients->Find(w.value_id());
  ASSERT_NE(gradient, nullptr);
  EXPECT_EQ(gradient->gradient.place().kind(), MemoryPlace::Kind::kForeign);
  float* const trainers = MakersView(gradient->gradient.data<float>());
  ASSERT_NE(trainers, nullptr) << "the owner keeps a copy";
  // The gradient is 2 w, which is 0. The step uses what the trainer's memory has by then.
  for (int64_t i = 0; i < kElements; ++i) trainers[i] = static_cast<float>(i % 128);
  ASSERT_TRUE(optimizer->Step(context).ok());
  const std::vector<float> stepped = Read(*trainer_, w);
  for (int64_t i = 0; i < kElements; ++i)
    ASSERT_EQ(stepped[static_cast<size_t>(i)], -0.5f * static_cast<float>(i % 128)) << i;
}

TEST_F(OneMemoryTest, AUserValueIsTheTensorThatTheFunctionMade) {
  const RRef value = Must(trainer_->Remote("owner0", Ones(), {kElements}));
  const Values pulled = Must(trainer_->ToHere(std::vector<RRef>{value}));
  const Tensor stored = Stored(Must(owner_.runtime().store().Get(value.value_id())));
  EXPECT_EQ(stored.place().kind(), MemoryPlace::Kind::kSegment);
  EXPECT_EQ(stored.data<float>(), made_.load());
  ExpectOneMemory(pulled[0].As<Variable>()->tensor(), stored.data<float>());
  EXPECT_EQ(Traffic().copied_out + Traffic().copied_in, 0u);
}

TEST_F(OneMemoryTest, TheResultOfAFunctionIsTheTensorThatTheFunctionMade) {
  const Values result = Must(trainer_->RpcSync("owner0", Ones(), {kElements}));
  ExpectOneMemory(result[0].As<Variable>()->tensor(), made_.load());
  EXPECT_EQ(Traffic().copied_out + Traffic().copied_in, 0u);
}

TEST_F(OneMemoryTest, AFunctionReadsTheArgumentOfItsCaller) {
  const Tensor argument = Must(Tensor::Full({kElements}, DType::kF32, 41));
  const Values read = Must(trainer_->RpcSync("owner0", Function::Registered("change"), {argument}));
  EXPECT_EQ(*read[0].As<double>(), 42);
  EXPECT_EQ(made_.load(), argument.data<float>());
  EXPECT_EQ(argument.data<float>()[0], 42);
  EXPECT_EQ(Traffic().copied_out + Traffic().copied_in, 0u);
}

TEST_F(OneMemoryTest, SmallValuesAndResultsGoThroughTheRing) {
  const uint64_t lent = Traffic().lent;
  const Values result = Must(trainer_->RpcSync("owner0", Ones(), {kFew}));
  const RRef value = Must(trainer_->Remote("owner0", Ones(), {kFew}));
  const Values pulled = Must(trainer_->ToHere(std::vector<RRef>{value}));
  for (const Values* values : {&result, &pulled}) {
    const Tensor tensor = (*values)[0].As<Variable>()->tensor();
    EXPECT_EQ(Elements(tensor), std::vector<float>(kFew, 1));
    EXPECT_NE(tensor.place().kind(), MemoryPlace::Kind::kForeign);
  }
  EXPECT_EQ(Traffic().lent, lent);
  EXPECT_EQ(Traffic().copied_out, 2 * kFew * sizeof(float));
  EXPECT_EQ(Traffic().copied_in, Traffic().copied_out);
}

}  // namespace
}  // namespace psd
