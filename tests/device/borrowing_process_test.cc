// Trainers in processes of their own read the memory of an owner on the same device in place. The
// tests run with several seeds, which decide in which order an emulated device of the owner works.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/psd.h"
#include "core/base/unique_fd.h"
#include "core/device_loans/device_loans.h"
#include "core/device_pieces/piece_methods.h"
#include "core/runtime/runtime.h"
#include "core/services/status/status_service.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/status.pb.h"
#include "tests/client/test_world.h"
#include "tests/device/borrowing_trainer.h"
#include "tests/device/device_under_test.h"
#include "tests/device/owner_under_test.h"

namespace psd {
namespace {

using ::testing::SizeIs;

// The parameter has two pieces and a short one.
constexpr auto kElements = static_cast<int64_t>(2 * device_pieces::kPieceBytes / sizeof(float) + 3);
constexpr size_t kBytes = static_cast<size_t>(kElements) * sizeof(float);

// This program, started again as a trainer (tests/device/borrowing_trainer.h). CUDA does not work
// in a process that was only forked.
class Child {
 public:
  Child(const std::string& name, const OwnerAddress& owner, const std::string& parameter) {
    int in[2], out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    const std::string program = "/proc/self/exe";
    std::vector<std::string> words = {
        program, testing::kBorrowingTrainer, name, owner.name, owner.address, parameter};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    in_ = UniqueFd(in[1]);
    out_ = UniqueFd(out[0]);
  }
  ~Child() { Kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Returns what the child reads now: its first and its last element.
  std::string Ask() { return Send('r'); }
  // The same after another pull.
  std::string PullAndAsk() { return Send('p'); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  std::string Send(char what) {
    if (write(in_.get(), &what, 1) != 1) return "the child is gone";
    std::string line;
    for (char byte = 0; read(out_.get(), &byte, 1) == 1 && byte != '\n';) line.push_back(byte);
    return line;
  }

  pid_t pid_ = 0;
  UniqueFd in_;
  UniqueFd out_;
};

class BorrowingProcessTest : public testing::OnDevice<::testing::TestWithParam<uint64_t>> {
 protected:
  static worker::RuntimeOptions Sharing() {
    worker::RuntimeOptions options;
    options.share_devices = true;
    return options;
  }
  static testing::DeviceUnderTestOptions Shared() {
    testing::DeviceUnderTestOptions options;
    options.budget_bytes = size_t{64} << 20;
    options.seed = GetParam();
    options.shareable = true;
    return options;
  }

  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    CreateOptions options;
    options.requires_grad = true;
    options.device = testing::NameOfDevice();
    w_ = Must(trainer_->GetOrCreate("owner", "w", Full({kElements}, 3), options));
  }
  OwnerAddress owner() { return host_.owner().address(); }
  void Assign(double element) {
    Must(trainer_->Assign(w_, Must(Tensor::Full({kElements}, DType::kF32, element))));
  }
  device_loans::DeviceLoans& loans() { return host_.owner().runtime().loans(); }
  size_t BytesLent() {
    size_t bytes = 0;
    for (const device_loans::Lent& one : loans().lent()) bytes += one.bytes;
    return bytes;
  }
  void AwaitReturns(size_t bytes_left) {
    while (BytesLent() > bytes_left) std::this_thread::yield();
  }
  store::Parameter& Parameter() {
    return *Must(host_.owner().runtime().store().Get(w_.value_id()))->parameter;
  }
  // How the owner's status says that its peers read its devices.
  std::string HowRead() {
    std::string all;
    const v1::WorkerStatus status = host_.owner().runtime().status().Collect({});
    for (const v1::PeerState& peer : status.peers())
      all += peer.name() + ": " + peer.device_memory() + "; ";
    return all;
  }

  OwnerUnderTest host_{"owner", Sharing(), Shared()};
  const std::unique_ptr<Worker> trainer_ = StartTrainer("trainer", {owner()});
  RRef w_;
};

INSTANTIATE_TEST_SUITE_P(Orders, BorrowingProcessTest, ::testing::Values(0, 1));

TEST_P(BorrowingProcessTest, ReadsInPlaceUntilItIsKilled) {
  Child child("child", owner(), "w");
  EXPECT_EQ(child.Ask(), "3 3");
  EXPECT_EQ(BytesLent(), kBytes) << HowRead();
  for (int i = 0; i < 4; ++i) Assign(7);
  EXPECT_EQ(child.Ask(), "3 3");
  EXPECT_EQ(Parameter().stats().old_pinned, 1);
  child.Kill();
  EXPECT_EQ(child.Ask(), "the child is gone");
  AwaitReturns(0);
  while (Parameter().stats().old_pinned > 0) std::this_thread::yield();
}

TEST_P(BorrowingProcessTest, APullAfterAStepReadsTheNewVersionInPlaceAndReturnsTheOldOne) {
  Child child("child", owner(), "w");
  EXPECT_EQ(child.Ask(), "3 3");
  EXPECT_EQ(BytesLent(), kBytes) << HowRead();
  auto optimizer = Must(DistributedOptimizer::Create(*trainer_, Sgd{0.5}, {w_}));
  for (const char* const after : {"2.5 2.5", "2 2", "1.5 1.5"}) {
    Context context = Must(trainer_->NewContext());
    ASSERT_TRUE(context.Backward({Sum(Must(trainer_->ToHere({w_}, context))[0])}).ok());
    const absl::Status stepped = optimizer->Step(context);
    ASSERT_TRUE(stepped.ok()) << stepped;
    EXPECT_EQ(child.PullAndAsk(), after);
    AwaitReturns(kBytes);
    EXPECT_EQ(BytesLent(), kBytes) << HowRead();
    while (Parameter().stats().old_pinned > 0) std::this_thread::yield();
  }
}

TEST_P(BorrowingProcessTest, WhatOneProcessBorrowsDoesNotEndWithAnother) {
  Child first("first", owner(), "w"), second("second", owner(), "w");
  EXPECT_EQ(first.Ask(), "3 3");
  EXPECT_EQ(second.Ask(), "3 3");
  ASSERT_THAT(loans().lent(), SizeIs(2)) << HowRead();
  first.Kill();
  AwaitReturns(kBytes);
  Assign(7);
  Assign(8);
  EXPECT_EQ(second.Ask(), "3 3");
  EXPECT_EQ(BytesLent(), kBytes);
}

}  // namespace
}  // namespace psd
