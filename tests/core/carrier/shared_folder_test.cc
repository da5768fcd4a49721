// Workers whose network namespaces differ find each other's shared memory in a folder.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/base/unique_fd.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/shm/host_carrier.h"
#include "core/carrier/shm/host_factory.h"
#include "core/carrier/shm/unix_socket.h"
#include "tests/core/carrier/own_namespace.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {
namespace {

constexpr char kName[] = "owner0.example";  // which nothing resolves

class SharedFolderTest : public ::testing::Test {
 protected:
  SharedFolderTest() {
    std::string path = "/tmp/psd_folder_XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  ~SharedFolderTest() override {
    near_->SetLink(nullptr);
    std::filesystem::remove_all(folder_);
  }

  std::shared_ptr<Carrier> Start(const std::string& advertise = "") {
    return *NewHostCarrier(GrpcCarrierOptions(), SharedMemoryUse{true, folder_, advertise},
                           logger_);
  }
  std::string Listen(Carrier& carrier, const std::string& address = "127.0.0.1:0") {
    const auto bound = carrier.Listen(address, [this](std::shared_ptr<Link>) { return far_; });
    EXPECT_TRUE(bound.ok()) << bound.status();
    return bound.ok() ? *bound : "";
  }
  // The address that others dial of a worker that listens at `bound`.
  static std::string Named(const std::string& bound) {
    return absl::StrCat(kName, bound.substr(bound.rfind(':')));
  }
  std::string FileOf(const std::string& address) const { return folder_ + "/" + address; }
  std::string Dial(Carrier& carrier, const std::string& address) {
    const auto link = ConnectAndWait(carrier, address, near_);
    EXPECT_TRUE(link.ok()) << link.status();
    return link.ok() ? (*link)->Description() : "";
  }

  std::string folder_;
  std::ostringstream log_;
  const std::shared_ptr<Logger> logger_ = NewStreamLogger(log_, LogLevel::kInfo);
  const std::shared_ptr<Recorder> near_ = std::make_shared<Recorder>();
  const std::shared_ptr<Recorder> far_ = std::make_shared<Recorder>();
};

// The other one has no address of this namespace, so nothing else than the folder leads to it.
// This test is the first one, because gRPC does not survive a fork.
TEST_F(SharedFolderTest, AWorkerOfAnotherNetworkNamespaceIsFound) {
  int to_parent[2], to_child[2];
  ASSERT_EQ(pipe2(to_parent, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(to_child, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(to_child[1]);
    if (!testing::EnterNamespace()) _exit(77);
    const auto dialled = Start();
    const std::string bound = Listen(*dialled, absl::StrCat(testing::kOwn, ":0"));
    if (write(to_parent[1], bound.data(), bound.size()) < 0) _exit(1);
    char end = 0;
    const bool ended = read(to_child[0], &end, 1) == 0;  // the test has ended
    dialled->Shutdown();
    _exit(ended && !::testing::Test::HasFailure() ? 0 : 1);
  }
  close(to_parent[1]);
  close(to_child[0]);
  const UniqueFd from(to_parent[0]);
  UniqueFd until(to_child[1]);
  char bound[64] = {};
  if (read(from.get(), bound, sizeof(bound) - 1) > 0) {
    const auto dialler = Start();
    EXPECT_EQ(Dial(*dialler, bound), absl::StrCat("shm unix:", FileOf(bound)));
    dialler->Shutdown();
  }
  until = UniqueFd();
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "this system allows no namespaces";
  EXPECT_EQ(status, 0);
}

TEST_F(SharedFolderTest, AWorkerIsFoundByTheAddressThatItAdvertises) {
  const auto dialled = Start(kName), dialler = Start();
  const std::string address = Named(Listen(*dialled));
  EXPECT_EQ(Dial(*dialler, address), absl::StrCat("shm unix:", FileOf(address)));
  EXPECT_EQ(log_.str(), "");
  dialler->Shutdown();
  dialled->Shutdown();
  EXPECT_FALSE(std::filesystem::exists(FileOf(address))) << "its file goes with it";
}

TEST_F(SharedFolderTest, LoopbackIsNotInTheFolder) {
  const auto dialled = Start(), dialler = Start();
  const std::string bound = Listen(*dialled);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_TRUE(absl::StrContains(log_.str(), "no other network namespace can dial " + bound))
      << log_.str();
  EXPECT_EQ(Dial(*dialler, bound), "shm unix:@psd/" + bound) << "of this namespace";
  const SocketFolder folder("/run/psd", "");
  for (const char* none : {"127.0.0.1:7071", "localhost:7071", "[::1]:7071", "0.0.0.0:7071",
                           "[::]:7071", "10.0.0.5:0", "nonsense"}) {
    EXPECT_EQ(folder.SocketAt(none), std::nullopt) << none;
    EXPECT_FALSE(folder.OwnSocket(none).ok()) << none;
  }
  EXPECT_EQ(folder.SocketAt("10.0.0.5:7071"), "unix:/run/psd/10.0.0.5:7071");
  EXPECT_EQ(folder.SocketAt("[fd00::5]:7071"), "unix:/run/psd/[fd00::5]:7071");
  dialler->Shutdown();
  dialled->Shutdown();
}

TEST_F(SharedFolderTest, TheFileOfADeadWorkerIsReplacedAndThatOfALivingOneIsNot) {
  const auto first = Start(absl::StrCat(kName, ":7071")),
             second = Start(absl::StrCat(kName, ":7071"));
  const std::string address = absl::StrCat(kName, ":7071");
  { const auto dead = ListenUnix("unix:" + FileOf(address)); }  // closes it, and leaves its file
  ASSERT_TRUE(std::filesystem::exists(FileOf(address)));
  Listen(*first);
  EXPECT_EQ(log_.str(), "");
  Listen(*second);
  EXPECT_TRUE(absl::StrContains(log_.str(), "shared_memory_unused")) << log_.str();
  EXPECT_TRUE(absl::StrContains(log_.str(), FileOf(address))) << log_.str();
  second->Shutdown();
  const auto dialler = Start();
  EXPECT_EQ(Dial(*dialler, address), "shm unix:" + FileOf(address))
      << "the first one still listens";
  dialler->Shutdown();
  first->Shutdown();
}

TEST_F(SharedFolderTest, AnAddressThatIsTooLongIsSaidAndTheNetworkUsed) {
  const auto dialled = Start(std::string(100, 'a')), dialler = Start();
  const std::string bound = Listen(*dialled);
  EXPECT_TRUE(absl::StrContains(log_.str(), "shared_memory_unused")) << log_.str();
  EXPECT_EQ(Dial(*dialler, bound), "shm unix:@psd/" + bound);
  dialler->Shutdown();
  dialled->Shutdown();
}

// A user who can write to the folder could put a false worker at an address there.
TEST_F(SharedFolderTest, AFolderThatOthersMayWriteToIsNotUsed) {
  const auto dialled = Start(kName);
  std::filesystem::permissions(folder_, std::filesystem::perms::group_write,
                               std::filesystem::perm_options::add);
  const std::string address = Named(Listen(*dialled));
  const auto dialler = Start();
  EXPECT_TRUE(absl::StrContains(log_.str(), "may be written by others")) << log_.str();
  EXPECT_FALSE(ConnectAndWait(*dialler, address, near_).ok()) << "nothing resolves it";
  dialler->Shutdown();
  dialled->Shutdown();
}

}  // namespace
}  // namespace psd::carrier
