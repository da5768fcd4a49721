// Both ends of a link pass descriptors for the users of their carriers, and notice the end of the
// process at the other end.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/carrier/passed_descriptors.h"
#include "core/carrier/shm/shm_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/recorder.h"
#include "tests/core/carrier/shm_listening_test.h"
#include "tests/core/carrier/shm_raw_peer.h"

namespace psd::carrier {
namespace {

UniqueFd NewFile() {
  return UniqueFd(memfd_create("passed", MFD_CLOEXEC));
}

ino_t FileOf(int fd) {
  struct stat file = {};
  EXPECT_EQ(fstat(fd, &file), 0);
  return file.st_ino;
}

// Passes some files, and keeps what comes. Thread-safe.
class Passing : public DescriptorUser {
 public:
  struct Came {
    std::shared_ptr<HostProcess> peer;
    std::string name;
    ino_t file = 0;
  };

  // Refuses every descriptor with `refusal`, if that is an error.
  explicit Passing(std::vector<NamedDescriptor> passes, absl::Status refusal = absl::OkStatus())
      : passes_(std::move(passes)), refusal_(std::move(refusal)) {}

  std::vector<NamedDescriptor> ForPeer(const std::shared_ptr<HostProcess>& peer) override {
    MutexLock lock(mutex_);
    peers_.push_back(peer);
    return passes_;
  }
  absl::Status OnPassed(const std::shared_ptr<HostProcess>& peer, const std::string& name,
                        UniqueFd fd) override {
    const ino_t file = FileOf(fd.get());
    MutexLock lock(mutex_);
    came_.push_back({peer, name, file});
    return refusal_;
  }
  void OnNotPassed(const std::string& peer, const absl::Status& why) override {
    MutexLock lock(mutex_);
    not_passed_.push_back(absl::StrCat(peer, ": ", why.ToString()));
  }

  std::vector<Came> came() const {
    MutexLock lock(mutex_);
    return came_;
  }
  std::vector<std::shared_ptr<HostProcess>> peers() const {
    MutexLock lock(mutex_);
    return peers_;
  }
  std::vector<std::string> not_passed() const {
    MutexLock lock(mutex_);
    return not_passed_;
  }

 private:
  const std::vector<NamedDescriptor> passes_;
  const absl::Status refusal_;
  mutable Mutex mutex_;  // leaf
  std::vector<Came> came_ PSD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<HostProcess>> peers_ PSD_GUARDED_BY(mutex_);
  std::vector<std::string> not_passed_ PSD_GUARDED_BY(mutex_);
};

std::shared_ptr<Passing> NewPassing(const std::vector<std::string>& names) {
  std::vector<NamedDescriptor> passes;
  for (const std::string& name : names)
    passes.push_back({name, std::make_shared<const UniqueFd>(NewFile())});
  return std::make_shared<Passing>(std::move(passes));
}

class PassedDescriptorsTest : public ShmListeningTest {
 protected:
  void ListenWith(std::shared_ptr<Passing> passing) {
    mine_ = std::move(passing);
    options_.descriptors = mine_;
    Listen();
  }
  // Dials with a carrier of its own. Returns that carrier, whose links have ended.
  void DialAndClose(std::shared_ptr<DescriptorUser> theirs, absl::Status& closed) {
    ShmCarrierOptions options = options_;
    options.descriptors = std::move(theirs);
    const std::shared_ptr<Carrier> dialler = *NewShmCarrier(options);
    const auto recorder = std::make_shared<Recorder>();
    const auto link = ConnectAndWait(*dialler, address_, recorder);
    closed = link.status();
    if (!link.ok()) return;
    Message message;
    message.header = "after the descriptors";
    ASSERT_TRUE((*link)->Send(message).ok());
    const auto accepted = Accepted(this->accepted() - 1);
    ASSERT_TRUE(accepted->WaitForMessages(1));
    (*link)->Close();
    ASSERT_TRUE(recorder->WaitForClosed());
    recorder->SetLink(nullptr);
  }
  void ExpectRawPeerEnds(const std::function<void(ShmRawPeer&)>& lie, const std::string& why) {
    ListenWith(NewPassing({}));
    ShmRawPeer peer(address_);
    lie(peer);
    const std::string told = peer.AwaitEnd();
    EXPECT_TRUE(absl::StrContains(told, why)) << told;
    EXPECT_EQ(accepted(), 0u);
    ExpectServes();
  }

  std::shared_ptr<Passing> mine_;
};

TEST_F(PassedDescriptorsTest, BothEndsHaveAllDescriptorsBeforeTheFirstMessage) {
  const std::vector<NamedDescriptor> two = {
      {"one", std::make_shared<const UniqueFd>(NewFile())},
      {std::string("two\0\xff", 5), std::make_shared<const UniqueFd>(NewFile())}};
  const std::vector<NamedDescriptor> back = {{"", std::make_shared<const UniqueFd>(NewFile())}};
  ListenWith(std::make_shared<Passing>(back));
  const auto theirs = std::make_shared<Passing>(two);
  ShmCarrierOptions options = options_;
  options.descriptors = theirs;
  const std::shared_ptr<Carrier> dialler = *NewShmCarrier(options);
  const auto recorder = std::make_shared<Recorder>();
  const auto link = ConnectAndWait(*dialler, address_, recorder);
  ASSERT_TRUE(link.ok()) << link.status();
  // The dialler's end has opened, so it has got everything.
  const auto came_back = theirs->came();
  ASSERT_EQ(came_back.size(), 1u);
  EXPECT_EQ(came_back[0].file, FileOf(back[0].fd->get()));
  EXPECT_EQ(came_back[0].name, "");
  // So has the end that accepted it.
  const auto came = mine_->came();
  ASSERT_EQ(came.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(came[i].name, two[i].name);
    EXPECT_EQ(came[i].file, FileOf(two[i].fd->get()));
  }
  EXPECT_TRUE(mine_->not_passed().empty());
  EXPECT_TRUE(theirs->not_passed().empty());
  recorder->SetLink(nullptr);
}

TEST_F(PassedDescriptorsTest, AllLinksToAProcessNameTheSameProcess) {
  ListenWith(NewPassing({"a"}));
  const auto theirs = NewPassing({"b"});
  absl::Status closed;
  for (int i = 0; i < 2; ++i) {
    DialAndClose(theirs, closed);
    ASSERT_TRUE(closed.ok()) << closed;
  }
  const auto peers = mine_->peers();
  ASSERT_EQ(peers.size(), 2u);
  EXPECT_EQ(peers[0], peers[1]);
  EXPECT_EQ(mine_->came()[0].peer, peers[0]);
  EXPECT_EQ(peers[0]->name(), absl::StrCat("process ", getpid(), " of user ", geteuid()));
}

TEST_F(PassedDescriptorsTest, AnEndWithoutAUserClosesThem) {
  Listen();
  const auto theirs = NewPassing({"a", "b"});
  absl::Status closed;
  DialAndClose(theirs, closed);
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_TRUE(theirs->came().empty());
}

TEST_F(PassedDescriptorsTest, AUserThatRefusesOneEndsTheLink) {
  ListenWith(std::make_shared<Passing>(std::vector<NamedDescriptor>(),
                                       absl::InvalidArgumentError("no name of ours")));
  absl::Status closed;
  DialAndClose(NewPassing({"a"}), closed);
  EXPECT_EQ(closed.code(), absl::StatusCode::kUnavailable) << closed;
  EXPECT_TRUE(absl::StrContains(closed.message(), "no name of ours")) << closed;
}

TEST_F(PassedDescriptorsTest, APeerPassesABoundedNumber) {
  ExpectRawPeerEnds(
      [](ShmRawPeer& peer) {
        for (size_t i = 0; i <= kMostPassedDescriptors; ++i)
          SendPacket(peer.fd(), PacketKind::kDescriptor, "x", peer.own().fd());
      },
      "more than 16 descriptors");
  EXPECT_LE(mine_->came().size(), kMostPassedDescriptors);
}

TEST_F(PassedDescriptorsTest, APacketThatPassesNothingEndsTheLink) {
  ExpectRawPeerEnds([](ShmRawPeer& peer) { SendPacket(peer.fd(), PacketKind::kDescriptor, "x"); },
                    "passes 0 descriptors, not 1");
}

TEST_F(PassedDescriptorsTest, ADescriptorAfterTheHelloEndsTheLink) {
  ListenWith(NewPassing({}));
  ShmRawPeer peer(address_);
  peer.Open();
  SendPacket(peer.fd(), PacketKind::kDescriptor, "x", peer.own().fd());
  ASSERT_TRUE(Accepted(0)->WaitForClosed());
  const absl::Status reason = Accepted(0)->closed()[0];
  EXPECT_EQ(reason.code(), absl::StatusCode::kInvalidArgument) << reason;
  EXPECT_TRUE(absl::StrContains(reason.message(), "a descriptor after the hello")) << reason;
  EXPECT_TRUE(mine_->came().empty());
  peer.AwaitEnd();
  ExpectServes();
}

// A process that opens a link for each byte that it is sent, and closes it.
class DiallingChild {
 public:
  // Requires: this process has only one thread.
  DiallingChild() {
    int to_child[2], to_parent[2];
    EXPECT_EQ(pipe2(to_child, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(to_parent, O_CLOEXEC), 0);
    pid_ = fork();
    EXPECT_GE(pid_, 0);
    if (pid_ == 0) Run(to_child[0], to_parent[1]);
    close(to_child[0]);
    close(to_parent[1]);
    commands_ = UniqueFd(to_child[1]);
    answers_ = UniqueFd(to_parent[0]);
  }
  ~DiallingChild() { Kill(); }

  // Opens a link and closes it.
  void Dial(absl::string_view address) {
    char text[64] = {};
    address.copy(text, sizeof(text) - 1);
    ASSERT_EQ(write(commands_.get(), text, sizeof(text)), static_cast<ssize_t>(sizeof(text)));
    char done = 0;
    ASSERT_EQ(read(answers_.get(), &done, 1), 1);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  [[noreturn]] static void Run(int commands, int answers) {
    char address[64] = {};
    while (read(commands, address, sizeof(address)) == static_cast<ssize_t>(sizeof(address))) {
      { ShmRawPeer(address).Open(); }
      if (write(answers, "d", 1) != 1) break;
    }
    _exit(0);
  }

  pid_t pid_ = 0;
  UniqueFd commands_;
  UniqueFd answers_;
};

TEST_F(PassedDescriptorsTest, TheEndOfAProcessIsNoticedAndNotTheEndOfItsLinks) {
  DiallingChild child;
  ListenWith(NewPassing({}));
  child.Dial(address_);
  ASSERT_TRUE(Accepted(0)->WaitForClosed());
  ASSERT_EQ(mine_->peers().size(), 1u);
  const std::shared_ptr<HostProcess> process = mine_->peers()[0];
  EXPECT_EQ(process->name(), absl::StrCat("process ", child.pid(), " of user ", geteuid()));
  Mutex mutex;
  CondVar changed;
  std::vector<int> ended;
  const auto note = [&](int number) {
    MutexLock lock(mutex);
    ended.push_back(number);
    changed.NotifyAll();
  };
  process->OnEnded([&] { note(1); });
  process->OnEnded([&] { note(2); });
  // All that the carrier sees of a link that has ended comes before the next link.
  child.Dial(address_);
  ASSERT_TRUE(Accepted(1)->WaitForClosed());
  EXPECT_EQ(mine_->peers().at(1), process);
  {
    MutexLock lock(mutex);
    EXPECT_TRUE(ended.empty());
  }
  child.Kill();
  MutexLock lock(mutex);
  while (ended.size() < 2 && changed.WaitFor(mutex, kPatience)) {
  }
  EXPECT_EQ(ended, (std::vector<int>{1, 2}));
}

TEST_F(PassedDescriptorsTest, ACallbackForAProcessThatHasEndedRunsAtOnce) {
  HostProcess process("process 1 of user 2");
  process.End();
  int ended = 0;
  process.OnEnded([&ended] { ++ended; });
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace psd::carrier
