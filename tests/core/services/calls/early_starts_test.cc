#include "core/services/calls/early_starts.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

class EarlyStartsTest : public ::testing::Test {
 protected:
  // A function that keeps its thread until the leave is taken out of leaves_.
  std::shared_ptr<EarlyStarts::Candidate> Add() {
    return starts_->Add([this](const absl::Status& status, EarlyStarts::Leave leave) {
      begun_.push_back(status);
      if (leave != nullptr) leaves_.push_back(std::move(leave));
    });
  }
  void Fill() {
    for (int i = 0; i < EarlyStarts::kMost; ++i) EXPECT_EQ(Add(), nullptr) << "started at once";
    EXPECT_EQ(leaves_.size(), size_t{EarlyStarts::kMost});
    begun_.clear();
  }

  std::vector<absl::Status> begun_;
  std::vector<EarlyStarts::Leave> leaves_;
  std::shared_ptr<EarlyStarts> starts_ = std::make_shared<EarlyStarts>();
};

TEST_F(EarlyStartsTest, ALeaveThatIsGivenBackStartsTheNext) {
  Fill();
  const auto first = Add(), second = Add();
  EXPECT_TRUE(begun_.empty());
  leaves_.pop_back();
  EXPECT_EQ(begun_.size(), 1u);
  EXPECT_EQ(leaves_.size(), size_t{EarlyStarts::kMost});
  leaves_.pop_back();
  EXPECT_EQ(begun_.size(), 2u);
}

TEST_F(EarlyStartsTest, AFunctionStartsOnceWhicheverComesFirst) {
  Fill();
  const auto waits = Add();
  waits->ArgumentsMade(absl::OkStatus());
  EXPECT_EQ(begun_.size(), 1u);
  const auto cancelled = Add();
  cancelled->ArgumentsMade(absl::CancelledError("no"));
  EXPECT_EQ(begun_.size(), 2u);
  EXPECT_EQ(begun_.back().code(), absl::StatusCode::kCancelled);
  leaves_.pop_back();
  EXPECT_EQ(begun_.size(), 2u);
  EXPECT_EQ(Add(), nullptr) << "the leave was not lost on those";
  EXPECT_EQ(begun_.size(), 3u);
}

TEST_F(EarlyStartsTest, ThoseThatAreDroppedDoNotStart) {
  Fill();
  for (int i = 0; i < 5'000; ++i) Add();
  leaves_.pop_back();
  EXPECT_TRUE(begun_.empty());
  EXPECT_EQ(Add(), nullptr);
}

// This happens when the queue of functions is full: each start fails and gives its leave back
// before it returns.
TEST_F(EarlyStartsTest, StartsThatEndAtOnceDoNotNest) {
  Fill();
  int depth = 0, deepest = 0, ended = 0;
  std::vector<std::shared_ptr<EarlyStarts::Candidate>> waiting;
  for (int i = 0; i < 1'000; ++i) {
    waiting.push_back(starts_->Add([&](const absl::Status&, EarlyStarts::Leave leave) {
      deepest = std::max(deepest, ++depth);
      leave = nullptr;
      --depth;
      ++ended;
    }));
  }
  leaves_.pop_back();
  EXPECT_EQ(ended, 1'000);
  EXPECT_EQ(deepest, 1);
}

}  // namespace
}  // namespace psd::services
