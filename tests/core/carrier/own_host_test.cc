// A worker recognises its own host by the addresses of its network namespace.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/host_port.h"
#include "core/base/log.h"
#include "core/carrier/carrier.h"
#include "core/carrier/grpc/grpc_factory.h"
#include "core/carrier/shm/host_carrier.h"
#include "core/carrier/shm/host_factory.h"
#include "tests/core/carrier/own_namespace.h"
#include "tests/core/carrier/recorder.h"

namespace psd::carrier {
namespace {

// The sockets of a worker of this host that answers at `host`.
std::vector<std::string> SocketsOf(const std::string& host) {
  return {absl::StrCat("unix:@psd/", HostPort{host, 7071}.ToString()), "unix:@psd/0.0.0.0:7071"};
}
std::vector<std::string> Found(const std::string& host) {
  return SocketsFor(HostPort{host, 7071}.ToString());
}

TEST(OwnHostTest, AllAddressesOfTheInterfacesAreItsOwn) {
  ifaddrs* all = nullptr;
  ASSERT_EQ(getifaddrs(&all), 0);
  int addresses = 0;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    const void* address = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (family == AF_INET6)
      address = &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
    char host[INET6_ADDRSTRLEN] = {};
    if (family != AF_INET && family != AF_INET6) continue;
    ASSERT_NE(inet_ntop(family, address, host, sizeof(host)), nullptr);
    EXPECT_EQ(Found(host), SocketsOf(host)) << one->ifa_name;
    ++addresses;
  }
  freeifaddrs(all);
  EXPECT_GT(addresses, 0);
}

// Runs `test` in a child process, in such a namespace. Skips the test if there is none: if the
// system allows none, and under ThreadSanitizer, which has a thread of its own in each process.
void RunInNamespace(const std::function<void()>& test) {
  constexpr int kNoNamespace = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!testing::EnterNamespace()) _exit(kNoNamespace);
    test();
    _exit(::testing::Test::HasFailure() ? 1 : 0);  // the failures are told already
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "it ended with " << status;
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "this process cannot enter a namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(OwnHostTest, AddressesThatAreNotLoopbackAreToldApart) {
  struct Row {
    const char* host;
    bool own;
  };
  constexpr Row kRows[] = {
      {testing::kOwn, true},
      {testing::kOwnSix, true},
      {"127.0.0.1", true},
      {"127.8.9.10", true},
      {"::1", true},
      {"10.77.0.2", false},          // a neighbour of the same network
      {"10.77.0", false},            // no whole address
      {"192.0.2.1", false},          // for documents, on no host
      {"fd00:77::2", false},         // a neighbour
      {"2001:db8::1", false},        // for documents
      {"::ffff:192.0.2.1", false},   // the same in another form
      {"0.0.0.0", false},            // cannot be dialled
      {"owner0.example", false},     // would have to be looked up
      {"127.example", false},        // a name, too
      {"10.77.0.1.example", false},  // and one that begins like an own address
  };
  RunInNamespace([&] {
    for (const Row& row : kRows)
      EXPECT_EQ(Found(row.host), row.own ? SocketsOf(row.host) : std::vector<std::string>())
          << row.host;
  });
}

TEST(OwnHostTest, AWorkerThatListensAtSuchAnAddressIsReachedThroughSharedMemory) {
  RunInNamespace([] {
    const auto start = [] {
      return *NewHostCarrier(GrpcCarrierOptions(), SharedMemoryUse{}, NewNullLogger());
    };
    for (const char* own : {testing::kOwn, testing::kOwnSix}) {
      const auto dialler = start(), dialled = start();
      const auto near = std::make_shared<Recorder>(), far = std::make_shared<Recorder>();
      const auto bound = dialled->Listen(HostPort{own, 0}.ToString(),
                                         [&far](std::shared_ptr<Link>) { return far; });
      ASSERT_TRUE(bound.ok()) << bound.status();
      const auto link = ConnectAndWait(*dialler, *bound, near);
      ASSERT_TRUE(link.ok()) << link.status();
      EXPECT_EQ((*link)->Description(), absl::StrCat("shm unix:@psd/", *bound));
      EXPECT_EQ((*link)->WhyNotShared(), "");
      dialler->Shutdown();
      dialled->Shutdown();
    }
  });
}

}  // namespace
}  // namespace psd::carrier
