#include "core/store/parameter.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/base/memory_mapping.h"
#include "core/base/sealed_memory.h"
#include "core/base/shared_allocator.h"
#include "core/base/shared_segment.h"
#include "core/base/unique_fd.h"
#include "core/tensor/flat_tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd::store {
namespace {

const Changing kChanging = ChangingForTests::Make();

using ::testing::HasSubstr;

constexpr int64_t kElements = 4160;  // more than a small parameter has
constexpr size_t kBytes = kElements * sizeof(float);

bool AllEqual(const Tensor& tensor, float value) {
  const float* data = tensor.data<float>();
  return std::all_of(data, data + tensor.NumElements(), [&](float x) { return x == value; });
}

bool AllEqual(const FlatTensor& tensor, float value) {
  const auto* data = reinterpret_cast<const float*>(tensor.data);
  return std::all_of(data, data + tensor.bytes / sizeof(float),
                     [&](float x) { return x == value; });
}

class ParameterTest : public ::testing::Test {
 protected:
  explicit ParameterTest(size_t limit = 0,
                         std::shared_ptr<Allocator> underlying = NewHeapAllocator())
      : budget_(MemoryAccount::Create(limit, std::move(underlying))) {}

  std::shared_ptr<Parameter> New(float value = 1) {
    return Create(*Tensor::Full({kElements}, DType::kF32, value));
  }
  std::shared_ptr<Parameter> Create(const Tensor& initial) {
    auto parameter = Parameter::Create({1, next_id_++}, initial, true, budget_, versions_);
    EXPECT_TRUE(parameter.ok()) << parameter.status();
    return *parameter;
  }
  // Makes a step that fills every parameter with the number of its next version.
  static void Step(std::vector<Parameter*> parameters) {
    auto writes = *Parameter::BeginWrite(kChanging, parameters);
    for (const Parameter::Write& write : writes) {
      auto* spare = reinterpret_cast<float*>(write.spare);
      std::fill(spare, spare + kElements, static_cast<float>(write.version + 1));
    }
    Parameter::Publish(kChanging, parameters);
  }

  size_t buffers() const { return budget_->used_bytes() / kBytes; }

  std::shared_ptr<MemoryAccount> budget_;
  std::shared_ptr<VersionLock> versions_ = std::make_shared<VersionLock>();
  uint64_t next_id_ = 1;
};

TEST_F(ParameterTest, StartsAsVersionOne) {
  auto parameter = New(3);
  EXPECT_EQ(parameter->version(), 1u);
  EXPECT_EQ(parameter->dtype(), DType::kF32);
  EXPECT_TRUE(parameter->requires_grad());
  auto pinned = *parameter->Pin();
  EXPECT_EQ(pinned.version, 1u);
  EXPECT_TRUE(AllEqual(pinned.tensor, 3));
  EXPECT_EQ(buffers(), 1u);  // without an optimizer there is no spare buffer
}

TEST_F(ParameterTest, RefusesWhatCannotBeOne) {
  auto ints = Tensor::Of<int64_t>({2}, {1, 2});
  auto refused = Parameter::Create({1, 1}, ints, true, budget_, versions_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("i64[2]"));
  EXPECT_FALSE(Parameter::Create({1, 1}, Tensor(), true, budget_, versions_).ok());
}

TEST_F(ParameterTest, StridedAndEmptyInitialValues) {
  auto matrix = Tensor::Of<float>({2, 2}, {1, 2, 3, 4});
  auto parameter = Create(matrix.View({2, 2}, {1, 2}, 0));
  auto pinned = *parameter->Pin();
  EXPECT_EQ(pinned.tensor.data<float>()[1], 3);
  auto empty = Create(*Tensor::Zeros({0}, DType::kF64));
  ASSERT_TRUE(empty->AcquireForSteps().ok());
  Parameter* one = empty.get();
  ASSERT_TRUE(Parameter::BeginWrite(kChanging, {&one, 1}).ok());
  Parameter::Publish(kChanging, {&one, 1});
  EXPECT_EQ(empty->version(), 2u);
  EXPECT_EQ(empty->Pin()->tensor.NumElements(), 0);
}

TEST_F(ParameterTest, ReadersKeepTheirVersionWhileStepsGoOn) {
  auto parameter = New(1);
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  auto first = *parameter->Pin();
  Step({parameter.get()});
  auto second = *parameter->Pin();
  Step({parameter.get()});
  EXPECT_TRUE(AllEqual(first.tensor, 1));
  EXPECT_TRUE(AllEqual(second.tensor, 2));
  EXPECT_EQ(parameter->stats().old_pinned, 2);
  EXPECT_TRUE(AllEqual(parameter->Pin()->tensor, 3));
}

TEST_F(ParameterTest, ReadersOfOneVersionShareItsBuffer) {
  auto parameter = New();
  auto a = *parameter->Pin(), b = *parameter->Pin();
  EXPECT_EQ(a.tensor.raw_data(), b.tensor.raw_data());
  EXPECT_EQ(parameter->stats().copies, 0);
}

TEST_F(ParameterTest, VersionsPinnedTogetherAreLetGoTogether) {
  auto a = New(1), b = New(1);
  ASSERT_TRUE(a->AcquireForSteps().ok());
  ASSERT_TRUE(b->AcquireForSteps().ok());
  const std::vector<Parameter*> parameters = {a.get(), b.get(), a.get()};
  auto pinned = *Parameter::PinTogether(parameters, Parameter::Keep(parameters));
  ASSERT_EQ(pinned.tensors.size(), 3u);
  EXPECT_EQ(pinned.versions, (std::vector<uint64_t>{1, 1, 1}));
  Step({a.get(), b.get()});
  EXPECT_EQ(a->stats().old_pinned, 1);
  EXPECT_EQ(b->stats().old_pinned, 1);
  b.reset();
  EXPECT_EQ(buffers(), 4u) << "of the second parameter only the pinned one";
  for (const FlatTensor& tensor : pinned.tensors) EXPECT_TRUE(AllEqual(tensor, 1));
  EXPECT_TRUE(AllEqual(a->Pin()->tensor, 2));
  pinned = {};
  EXPECT_EQ(a->stats().old_pinned, 0);
  EXPECT_EQ(buffers(), 2u);
}

TEST_F(ParameterTest, WhatIsPinnedTogetherIsCopiedWhereItCannotBePinned) {
  auto a = New(1), b = New(1);
  ASSERT_TRUE(a->AcquireForSteps().ok());
  std::vector<PinnedVersion> old;
  for (int step = 0; step < 2; ++step) {
    old.push_back(*a->Pin());
    Step({a.get()});
  }
  auto pinned =
      *Parameter::PinTogether(std::vector<Parameter*>{a.get(), b.get(), a.get()}, nullptr);
  EXPECT_EQ(a->stats().copies, 2);
  EXPECT_EQ(b->stats().copies, 0);
  Step({a.get()});
  Step({a.get()});
  EXPECT_TRUE(AllEqual(pinned.tensors[0], 3));
  EXPECT_TRUE(AllEqual(pinned.tensors[1], 1));
  EXPECT_TRUE(AllEqual(pinned.tensors[2], 3));
  EXPECT_EQ(pinned.versions, (std::vector<uint64_t>{3, 1, 3}));
}

TEST_F(ParameterTest, OfVersionsPinnedByThemselvesEachIsLetGoAlone) {
  auto a = New(1), b = New(1);
  ASSERT_TRUE(a->AcquireForSteps().ok());
  ASSERT_TRUE(b->AcquireForSteps().ok());
  auto pinned = *Parameter::PinAll(std::vector<Parameter*>{a.get(), b.get()});
  Step({a.get(), b.get()});
  pinned.pop_back();
  EXPECT_EQ(a->stats().old_pinned, 1);
  EXPECT_EQ(b->stats().old_pinned, 0);
}

TEST_F(ParameterTest, BeyondTwoOldVersionsReadersGetCopies) {
  auto parameter = New();
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  std::vector<PinnedVersion> held;
  for (int step = 0; step < 5; ++step) {
    held.push_back(*parameter->Pin());
    Step({parameter.get()});
  }
  EXPECT_EQ(parameter->stats().old_pinned, 2);
  EXPECT_EQ(parameter->stats().copies, 3);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(AllEqual(held[i].tensor, static_cast<float>(i + 1)));
  EXPECT_EQ(buffers(), 4u);  // the current version, a spare, and two old versions
  held.clear();
  EXPECT_EQ(parameter->stats().old_pinned, 0);
  EXPECT_EQ(buffers(), 2u);
}

TEST_F(ParameterTest, PinReservesTheNextSpareAndGivesItBack) {
  auto parameter = New();
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  EXPECT_EQ(parameter->stats().spares, 1);
  {
    auto pinned = *parameter->Pin();
    EXPECT_EQ(parameter->stats().spares, 2);
    Step({parameter.get()});
    EXPECT_EQ(parameter->stats().spares, 1);
  }
  EXPECT_EQ(parameter->stats().spares, 1);
  EXPECT_EQ(buffers(), 2u);
}

TEST_F(ParameterTest, SmallBuffersKeepTheSpareOfAPin) {
  auto small = Create(*Tensor::Zeros({8}, DType::kF32));
  ASSERT_TRUE(small->AcquireForSteps().ok());
  EXPECT_EQ(small->stats().spares, 1);
  EXPECT_TRUE(small->Pin().ok());
  EXPECT_EQ(small->stats().spares, 2);
  small->ReleaseFromSteps();
  EXPECT_EQ(small->stats().spares, 0);
}

TEST_F(ParameterTest, TwoBuffersTakeTurns) {
  auto parameter = New();
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  const std::byte* first = parameter->Pin()->tensor.raw_data();
  Step({parameter.get()});
  EXPECT_NE(parameter->Pin()->tensor.raw_data(), first);
  Step({parameter.get()});
  EXPECT_EQ(parameter->Pin()->tensor.raw_data(), first);
}

TEST_F(ParameterTest, OptimizersAreCounted) {
  auto parameter = New();
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  EXPECT_EQ(buffers(), 2u);
  parameter->ReleaseFromSteps();
  EXPECT_EQ(buffers(), 2u);
  parameter->ReleaseFromSteps();
  EXPECT_EQ(buffers(), 1u);
}

TEST_F(ParameterTest, AbandonedWriteChangesNothing) {
  auto parameter = New(4);
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  Parameter* one = parameter.get();
  auto writes = *Parameter::BeginWrite(kChanging, {&one, 1});
  std::memset(writes[0].spare, 0x7f, kBytes);
  Parameter::AbandonWrite(kChanging, {&one, 1});
  EXPECT_EQ(parameter->version(), 1u);
  EXPECT_TRUE(AllEqual(parameter->Pin()->tensor, 4));
  EXPECT_EQ(parameter->stats().spares, 1);
}

// Allocates segments, unless it is told to refuse.
class SegmentSource : public Allocator {
 public:
  absl::StatusOr<std::shared_ptr<Block>> Allocate(size_t bytes) override {
    if (refuses) return absl::ResourceExhaustedError("told to refuse");
    return segments_->Allocate(bytes);
  }
  bool refuses = false;

 private:
  static std::shared_ptr<Allocator> Segments() {
    SharedAllocatorOptions options;
    options.segment_threshold_bytes = kBytes;
    return NewSharedAllocator(options);
  }
  const std::shared_ptr<Allocator> segments_ = Segments();
};

// Versions in segments that other processes may map.
class SharedParameterTest : public ParameterTest {
 protected:
  explicit SharedParameterTest(
      size_t limit = 0, std::shared_ptr<SegmentSource> source = std::make_shared<SegmentSource>())
      : ParameterTest(limit, source), source_(std::move(source)) {}

  static SharedSegment& SegmentOf(const PinnedVersion& pinned) {
    return *pinned.tensor.place().segment();
  }
  // Ends a reader that was another process, and may still read what it was shown.
  static MemoryMapping LeftWith(PinnedVersion pinned) {
    SharedSegment& segment = SegmentOf(pinned);
    auto mapping = *MapSealedMemory(UniqueFd(dup(segment.fd())), segment.bytes(), "a test");
    segment.Retire();
    return mapping;
  }
  static bool AllEqualIn(const MemoryMapping& mapping, float value) {
    const auto* data = reinterpret_cast<const float*>(mapping.data());
    return std::all_of(data, data + kElements, [&](float x) { return x == value; });
  }

  const std::shared_ptr<SegmentSource> source_;
};

TEST_F(SharedParameterTest, TwoSegmentsTakeTurns) {
  auto parameter = New();
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  const uint64_t first = SegmentOf(*parameter->Pin()).id();
  Step({parameter.get()});
  EXPECT_NE(SegmentOf(*parameter->Pin()).id(), first);
  Step({parameter.get()});
  EXPECT_EQ(SegmentOf(*parameter->Pin()).id(), first);
}

TEST_F(SharedParameterTest, ARetiredSegmentIsNeverWritten) {
  auto parameter = New(1);
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  // One that is current when its reader leaves, and one that is old by then.
  const MemoryMapping current = LeftWith(*parameter->Pin());
  auto pinned = *parameter->Pin();
  EXPECT_EQ(SegmentOf(pinned).retired(), true);
  Step({parameter.get()});
  auto second = *parameter->Pin();
  Step({parameter.get()});
  pinned = {};
  const MemoryMapping old = LeftWith(std::move(second));
  for (int i = 0; i < 4; ++i) Step({parameter.get()});
  EXPECT_TRUE(AllEqualIn(current, 1));
  EXPECT_TRUE(AllEqualIn(old, 2));
  EXPECT_TRUE(AllEqual(parameter->Pin()->tensor, 7));
  EXPECT_LE(buffers(), 3u);
}

class FullSharedParameterTest : public SharedParameterTest {
 protected:
  FullSharedParameterTest() : SharedParameterTest(2 * kBytes) {}
};

TEST_F(FullSharedParameterTest, ARetiredSpareIsReplacedEvenIfTheBudgetIsFull) {
  auto parameter = New(1);
  const MemoryMapping left = LeftWith(*parameter->Pin());
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  for (int i = 0; i < 3; ++i) Step({parameter.get()});
  EXPECT_TRUE(AllEqualIn(left, 1));
  EXPECT_TRUE(AllEqual(parameter->Pin()->tensor, 4));
  EXPECT_EQ(buffers(), 2u);
}

TEST_F(FullSharedParameterTest, WithoutMemoryForASpareAStepIsRefusedAndCanBeTriedAgain) {
  auto a = New(1);
  const MemoryMapping left = LeftWith(*a->Pin());
  ASSERT_TRUE(a->AcquireForSteps().ok());
  Step({a.get()});
  Parameter* const one = a.get();
  source_->refuses = true;  // the retired buffer is a spare now, which the next step would replace
  EXPECT_EQ(Parameter::BeginWrite(kChanging, {&one, 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(AllEqual(a->Pin()->tensor, 2));
  source_->refuses = false;
  Step({a.get()});
  EXPECT_TRUE(AllEqual(a->Pin()->tensor, 3));
  EXPECT_TRUE(AllEqualIn(left, 1));
}

TEST_F(ParameterTest, ReadersMayOutliveTheParameter) {
  auto parameter = New(5);
  auto current = *parameter->Pin();
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  Step({parameter.get()});
  parameter.reset();
  EXPECT_TRUE(AllEqual(current.tensor, 5));
  EXPECT_EQ(buffers(), 1u);
  current = {};
  EXPECT_EQ(buffers(), 0u);
}

TEST_F(ParameterTest, AssignPublishesAVersion) {
  auto parameter = New();
  auto before = *parameter->Pin();
  auto version = parameter->Assign(kChanging, *Tensor::Full({kElements}, DType::kF32, 9));
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 2u);
  EXPECT_TRUE(AllEqual(parameter->Pin()->tensor, 9));
  EXPECT_TRUE(AllEqual(before.tensor, 1));
  before = {};
  EXPECT_EQ(buffers(), 1u);
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  ASSERT_TRUE(parameter->Assign(kChanging, *Tensor::Full({kElements}, DType::kF32, 10)).ok());
  EXPECT_EQ(buffers(), 2u);
}

TEST_F(ParameterTest, AssignNamesWhatDoesNotFit) {
  auto parameter = New();
  auto wrong = parameter->Assign(kChanging, *Tensor::Zeros({3}, DType::kF64));
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.status().message(), HasSubstr("f32[4160]"));
  EXPECT_THAT(wrong.status().message(), HasSubstr("f64[3]"));
  EXPECT_EQ(parameter->version(), 1u);
}

class SmallBudgetTest : public ParameterTest {
 protected:
  SmallBudgetTest() : ParameterTest(2 * kBytes) {}
};

TEST_F(SmallBudgetTest, RefusedReservationMeansCopy) {
  auto parameter = New(1);
  ASSERT_TRUE(parameter->AcquireForSteps().ok());
  auto copy = *parameter->Pin();
  EXPECT_EQ(parameter->stats().copies, 1);
  Step({parameter.get()});
  Step({parameter.get()});
  EXPECT_TRUE(AllEqual(copy.tensor, 1));
  EXPECT_EQ(buffers(), 2u);
}

TEST_F(SmallBudgetTest, RefusalsReserveNothing) {
  auto a = New(), b = New();
  auto refused = a->AcquireForSteps();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(a->stats().spares, 0);
  b.reset();
  auto pin = *a->Pin();  // one buffer is free, and a pinned parameter needs two
  EXPECT_FALSE(a->AcquireForSteps().ok());
  EXPECT_EQ(buffers(), 1u);
  pin = {};
  EXPECT_TRUE(a->AcquireForSteps().ok());
}

// Random pins, releases, steps, assignments and optimizers keep the rules of the header.
TEST_F(ParameterTest, BuffersObeyTheRulesInRandomHistories) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    auto parameter = New(1);
    std::vector<PinnedVersion> held;
    int acquirers = 0;
    for (int event = 0; event < 200; ++event) {
      switch (random() % 8) {
        case 0:
          ASSERT_TRUE(parameter->AcquireForSteps().ok());
          ++acquirers;
          break;
        case 1:
          if (acquirers > 0) --acquirers, parameter->ReleaseFromSteps();
          break;
        case 2:
        case 3:
          held.push_back(*parameter->Pin());
          break;
        case 4:
          if (!held.empty()) {
            std::swap(held[random() % held.size()], held.back());
            held.pop_back();
          }
          break;
        case 5:
          ASSERT_TRUE(
              parameter
                  ->Assign(kChanging, *Tensor::Full({kElements}, DType::kF32,
                                                    static_cast<double>(parameter->version() + 1)))
                  .ok());
          break;
        default:
          if (acquirers > 0) Step({parameter.get()});
      }
      for (const PinnedVersion& pin : held)
        ASSERT_TRUE(AllEqual(pin.tensor, static_cast<float>(pin.version)));
      const Parameter::Stats stats = parameter->stats();
      ASSERT_LE(stats.old_pinned, 2);
      ASSERT_LE(stats.spares, 2);
      ASSERT_EQ(stats.spares > 0, acquirers > 0);
      ASSERT_EQ(stats.bytes, budget_->used_bytes());
    }
    held.clear();
    EXPECT_EQ(buffers(), acquirers > 0 ? 2u : 1u);
    parameter.reset();
    EXPECT_EQ(buffers(), 0u);
  }
}

// Each version is filled with its number. A reader must never see two numbers in one version, or
// two parameters of one step at different versions.
TEST_F(ParameterTest, ConcurrentReadersSeeNoTornVersionAndNoHalfStep) {
  auto a = New(1), b = New(1);
  ASSERT_TRUE(a->AcquireForSteps().ok());
  ASSERT_TRUE(b->AcquireForSteps().ok());
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0}, reads{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&] {
      std::vector<PinnedVersion> held;
      std::vector<Parameter*> both = {a.get(), b.get()};
      while (!stop || reads < 100) {
        auto pinned = Parameter::PinAll(both);
        if (!pinned.ok() || (*pinned)[0].version != (*pinned)[1].version) ++torn;
        for (PinnedVersion& one : *pinned) {
          if (!AllEqual(one.tensor, static_cast<float>(one.version))) ++torn;
          held.push_back(std::move(one));
        }
        if (held.size() > 6) held.clear();
        ++reads;
      }
      for (const PinnedVersion& pin : held) {
        if (!AllEqual(pin.tensor, static_cast<float>(pin.version))) ++torn;
      }
    });
  }
  for (int step = 0; step < 2000; ++step) Step({a.get(), b.get()});
  stop = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(a->version(), 2001u);
  EXPECT_EQ(buffers(), 4u);
}

}  // namespace
}  // namespace psd::store
