// Trainers in processes of their own read the memory of an owner on the same device in place.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "client/psd.h"
#include "core/base/unique_fd.h"
#include "core/device_loans/device_loans.h"
#include "core/store/parameter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/device/lending_world.h"

namespace psd {
namespace {

using testing::AllAre;
using testing::ElementsThere;
using testing::kBytes;
using ::testing::SizeIs;
using testing::World;

// tests/device/borrowing_trainer.cc
class Child {
 public:
  Child(const OwnerAddress& owner, const std::string& parameter) {
    int in[2], out[2];
    EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    const std::string program = "tests/device/borrowing_trainer";
    std::vector<std::string> words = {program, owner.name, owner.address, parameter};
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
  std::string Ask() {
    if (write(in_.get(), "r", 1) != 1) return "the child is gone";
    std::string line;
    for (char byte = 0; read(out_.get(), &byte, 1) == 1 && byte != '\n';) line.push_back(byte);
    return line;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  UniqueFd in_;
  UniqueFd out_;
};

TEST(BorrowingProcessTest, ReadsInPlaceUntilItIsKilled) {
  World world;
  const RRef w = world.Make("w", 3);
  Child child(world.host().owner().address(), "w");
  EXPECT_EQ(child.Ask(), "3 3");
  EXPECT_EQ(world.BytesLent(), kBytes);
  for (int i = 0; i < 4; ++i) world.Assign(w, 7);
  EXPECT_EQ(child.Ask(), "3 3");
  EXPECT_EQ(world.At(w).stats().old_pinned, 1);
  child.Kill();
  world.AwaitNothingLent();
  while (world.At(w).stats().old_pinned > 0) std::this_thread::yield();
}

TEST(BorrowingProcessTest, WhatOneProcessBorrowsDoesNotEndWithAnother) {
  World world;
  const RRef w = world.Make("w", 3);
  Child first(world.host().owner().address(), "w");
  EXPECT_EQ(first.Ask(), "3 3");
  const Tensor pulled = world.Pull(w);
  EXPECT_THAT(world.loans().lent(), SizeIs(2));
  first.Kill();
  while (world.loans().lent().size() > 1) std::this_thread::yield();
  world.Assign(w, 7);
  world.Assign(w, 8);
  EXPECT_TRUE(AllAre(3, ElementsThere(pulled)));
  EXPECT_EQ(world.BytesLent(), kBytes);
}

}  // namespace
}  // namespace psd
