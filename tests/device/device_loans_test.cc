// Two workers on one device read each other's memory in place. Most tests have both in one process,
// with an emulated device each; some have a trainer in a process of its own.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "core/base/future.h"
#include "core/base/unique_fd.h"
#include "core/device/emulated/emulated_device.h"
#include "core/device_loans/device_loans.h"
#include "core/device_loans/lender.h"
#include "core/rpc/declared_method.h"
#include "core/services/status/status_service.h"
#include "core/services/values/value_methods.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/status.pb.h"
#include "proto/psd/v1/worker.pb.h"
#include "tests/client/test_world.h"
#include "tests/device/device_owner.h"
#include "tests/device/test_device.h"

namespace psd {
namespace {

using services::kPieceBytes;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Each parameter has two pieces and a short one.
constexpr auto kElements = static_cast<int64_t>(2 * kPieceBytes / sizeof(float) + 3);
constexpr size_t kBytes = static_cast<size_t>(kElements) * sizeof(float);

std::vector<float> ElementsThere(const Tensor& tensor) {
  return Elements(Must(tensor.ToHost()));
}

bool AllAre(float element, const std::vector<float>& elements) {
  return !elements.empty() && std::all_of(elements.begin(), elements.end(),
                                          [element](float each) { return each == element; });
}

worker::RuntimeOptions Sharing(bool shares = true, bool shared_memory = true) {
  worker::RuntimeOptions options;
  options.share_devices = shares;
  options.shared_memory = shared_memory;
  return options;
}

// An owner and a trainer on one device. They have an emulated device each.
class World {
 public:
  explicit World(worker::RuntimeOptions owner = Sharing(), bool trainer_shares = true,
                 bool trainer_shares_memory = true, uint64_t seed = 0)
      : host_("owner", testing::NewSharedTestDevice(seed), std::move(owner)),
        device_(testing::NewSharedTestDevice(seed)) {
    WorkerOptions options;
    options.name = "trainer";
    options.owners = {host_.owner().address()};
    options.devices = {device_};
    options.share_devices = trainer_shares;
    options.shared_memory = trainer_shares_memory;
    trainer_ = Must(Worker::Start(std::move(options)));
    there_.device = "emu:0";
  }

  RRef Make(const std::string& name, double element = 2) {
    CreateOptions options;
    options.requires_grad = true;
    options.device = "emu:0";
    return Must(trainer_->GetOrCreate("owner", name, Full({kElements}, element), options));
  }
  Tensor Pull(const RRef& parameter) {
    return Must(trainer_->Pull({parameter}, there_))[0].elements;
  }
  void Assign(const RRef& parameter, double element) {
    Must(trainer_->Assign(parameter, Must(Tensor::Full({kElements}, DType::kF32, element))));
  }
  device_loans::DeviceLoans& loans() { return host_.owner().runtime().loans(); }
  size_t BytesLent() {
    size_t bytes = 0;
    for (const device_loans::Lent& one : loans().lent()) bytes += one.bytes;
    return bytes;
  }
  void AwaitNothingLent() {
    while (!loans().lent().empty()) std::this_thread::yield();
  }
  store::Parameter& At(const RRef& parameter) {
    return *Must(host_.owner().runtime().store().Get(parameter.value_id()))->parameter;
  }
  // How the owner's status says that the trainer reads it.
  std::string HowRead() {
    const v1::WorkerStatus status = host_.owner().runtime().status().Collect({});
    for (const v1::PeerState& peer : status.peers())
      if (peer.name() == "trainer") return peer.device_memory();
    return "no such peer";
  }

  DeviceOwner& host() { return host_; }
  EmulatedDevice& owners_device() { return host_.device(); }
  EmulatedDevice& trainers_device() { return *device_; }
  std::unique_ptr<Worker>& trainer() { return trainer_; }
  const CallOptions& there() const { return there_; }

 private:
  DeviceOwner host_;
  const std::shared_ptr<EmulatedDevice> device_;
  std::unique_ptr<Worker> trainer_;
  CallOptions there_;
};

class DeviceLoansTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  World world_{Sharing(), true, true, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Seeds, DeviceLoansTest, ::testing::Values(0, 1));

TEST_P(DeviceLoansTest, APullCopiesNothing) {
  const RRef w = world_.Make("w");
  ASSERT_TRUE(world_.owners_device().Synchronize().ok());
  const size_t copies = world_.owners_device().copies_added();
  const size_t copies_here = world_.trainers_device().copies_added();
  const size_t used = world_.trainers_device().used_bytes();
  const Tensor pulled = world_.Pull(w);
  EXPECT_EQ(world_.owners_device().copies_added(), copies);
  EXPECT_EQ(world_.trainers_device().copies_added(), copies_here);
  EXPECT_EQ(world_.trainers_device().used_bytes(), used);
  EXPECT_EQ(pulled.device(), &world_.trainers_device());
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_EQ(world_.HowRead(), "in place");
}

TEST_P(DeviceLoansTest, LoansEndWhenTheLastTensorIsDropped) {
  const RRef w = world_.Make("w"), b = world_.Make("b");
  {
    const Tensor first = world_.Pull(w);
    {
      const Tensor second = world_.Pull(b);
      EXPECT_EQ(world_.BytesLent(), 2 * kBytes);
    }
    while (world_.BytesLent() > kBytes) std::this_thread::yield();
    EXPECT_TRUE(AllAre(2, ElementsThere(first)));
  }
  world_.AwaitNothingLent();
  world_.Assign(w, 3);
  EXPECT_EQ(world_.At(w).stats().old_pinned, 0);
}

TEST_P(DeviceLoansTest, LaterVersionsDoNotChangeWhatWasPulled) {
  const RRef w = world_.Make("w");
  std::vector<Tensor> pulled = {world_.Pull(w)};
  for (int i = 1; i <= 5; ++i) {
    world_.Assign(w, 10.0 * i);
    pulled.push_back(world_.Pull(w));
  }
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled[0])));
  for (size_t i = 1; i < pulled.size(); ++i)
    EXPECT_TRUE(AllAre(10.0f * static_cast<float>(i), ElementsThere(pulled[i]))) << i;
  pulled.clear();
  world_.AwaitNothingLent();
}

// The whole way: forward and backward on what was borrowed, then a step of the owner.
TEST_P(DeviceLoansTest, WhatIsReadInPlaceIsTrained) {
  const RRef w = world_.Make("w");
  auto optimizer = Must(DistributedOptimizer::Create(*world_.trainer(), Sgd{0.5}, {w}));
  for (int step = 1; step <= 3; ++step) {
    Context context = Must(world_.trainer()->NewContext());
    CallOptions options = world_.there();
    options.context = &context;
    const Variable here = *Must(world_.trainer()->ToHere({w}, options))[0].As<Variable>();
    EXPECT_EQ(here.tensor().device(), &world_.trainers_device());
    EXPECT_EQ(world_.BytesLent(), kBytes);
    const absl::Status back = context.Backward({Sum(here)});
    ASSERT_TRUE(back.ok()) << back;
    ASSERT_TRUE(optimizer->Step(context).ok());
    EXPECT_TRUE(AllAre(2 - 0.5f * static_cast<float>(step), ElementsThere(world_.Pull(w))));
  }
}

TEST_P(DeviceLoansTest, SmallParametersAndThoseForTheHostAreCopied) {
  const RRef w = world_.Make("w");
  CreateOptions options;
  options.device = "emu:0";
  const RRef small = Must(world_.trainer()->GetOrCreate("owner", "small", Full({4}, 4), options));
  const auto both = Must(world_.trainer()->Pull({small, w}, world_.there()));
  EXPECT_TRUE(AllAre(4, ElementsThere(both[0].elements)));
  EXPECT_TRUE(AllAre(2, ElementsThere(both[1].elements)));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  const Tensor on_host = Must(world_.trainer()->Pull({w}))[0].elements;
  EXPECT_TRUE(AllAre(2, Elements(on_host)));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_THAT(world_.HowRead(), HasSubstr("copied: it has not asked"));
}

// A trainer that has gone may have left tensors to its process, so what it has borrowed stays.
TEST_P(DeviceLoansTest, TheEndOfASessionDoesNotEndALoan) {
  const RRef w = world_.Make("w");
  auto other = StartTrainer("other", {world_.host().owner().address()});
  const RRef same = Must(other->Lookup("owner", "w"));
  const Tensor pulled = world_.Pull(w);
  world_.trainer().reset();
  for (int i = 0; i < 4; ++i)
    Must(other->Assign(same, Must(Tensor::Full({kElements}, DType::kF32, 7))));
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
}

TEST_P(DeviceLoansTest, MoreThanAFractionOfTheBudgetIsNotLent) {
  constexpr size_t kBudget = size_t{64} << 20;
  constexpr size_t kMost = kBudget / device_loans::Lender::kLentFraction / kBytes;
  std::vector<Tensor> pulled;
  for (size_t i = 0; i <= kMost; ++i) {
    const RRef w = world_.Make(absl::StrCat("w", i), static_cast<double>(i));
    pulled.push_back(world_.Pull(w));
    EXPECT_TRUE(AllAre(static_cast<float>(i), ElementsThere(pulled.back()))) << i;
  }
  EXPECT_EQ(world_.BytesLent(), kMost * kBytes);
  EXPECT_THAT(world_.HowRead(), HasSubstr("in place: 0 of 1; its process has borrowed"));
  pulled.clear();
  world_.AwaitNothingLent();
  const Tensor again = world_.Pull(world_.Make("w0", 0));
  EXPECT_EQ(world_.BytesLent(), kBytes);
}

// ---- workers that share nothing

void ExpectCopied(World& world) {
  const RRef w = world.Make("w");
  const Tensor pulled = world.Pull(w);
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
  EXPECT_EQ(pulled.device(), &world.trainers_device());
  EXPECT_THAT(world.loans().lent(), IsEmpty());
  EXPECT_THAT(world.HowRead(), HasSubstr("copied"));
}

TEST(CopiedTest, AnOwnerThatDoesNotShare) {
  World world(Sharing(false));
  ExpectCopied(world);
  EXPECT_THAT(world.HowRead(), HasSubstr("this worker does not share devices"));
}

TEST(CopiedTest, ATrainerThatDoesNotShare) {
  World world(Sharing(), /*trainer_shares=*/false);
  ExpectCopied(world);
}

TEST(CopiedTest, AnOwnerThatIsReachedOverTheNetwork) {
  World world(Sharing(), /*trainer_shares=*/true, /*trainer_shares_memory=*/false);
  ExpectCopied(world);
}

// ---- returns that are made up

class MadeUpReturnsTest : public ::testing::Test {
 protected:
  absl::Status Return(const std::string& key, const std::vector<uint64_t>& loans) {
    v1::ReturnLoans message;
    message.set_key(key);
    message.mutable_loans()->Add(loans.begin(), loans.end());
    rpc::RpcAgent& agent = stranger_.runtime().agent();
    agent.AddPeer("owner", world_.host().owner().address().address);
    return rpc::Ask(agent, device_loans::kReturnLoans, {"owner"}, message, {}).Wait().status();
  }

  World world_;
  TestOwner stranger_{"stranger"};
};

TEST_F(MadeUpReturnsTest, LoansOfOthersAndLoansThatAreNotOutAreLeftAlone) {
  const RRef w = world_.Make("w");
  const Tensor pulled = world_.Pull(w);
  std::vector<uint64_t> all = {0, UINT64_MAX};
  for (uint64_t i = 1; i < 100; ++i) all.push_back(i);
  for (const std::string& key : {std::string(), std::string(16, '\0'), std::string(5000, 'x')})
    EXPECT_TRUE(Return(key, all).ok());
  EXPECT_EQ(world_.BytesLent(), kBytes);
  EXPECT_TRUE(AllAre(2, ElementsThere(pulled)));
}

// ---- a trainer in a process of its own

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
