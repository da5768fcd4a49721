#include "core/carrier/grpc/connection_listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "gtest/gtest.h"

namespace psd::carrier {
namespace {

// Keeps the connections and the state changes that a listener reports, and lets tests wait for
// them.
class Taken {
 public:
  ~Taken() { CloseAll(); }
  void Start(ConnectionListener& listener) {
    listener.Start(
        [this](int fd) {
          MutexLock lock(mutex_);
          fds_.push_back(fd);
          changed_.NotifyAll();
        },
        [this](const absl::Status& why) {
          MutexLock lock(mutex_);
          news_.push_back(why);
          changed_.NotifyAll();
        });
  }
  int WaitForConnection(size_t number) {
    MutexLock lock(mutex_);
    while (fds_.size() < number) changed_.Wait(mutex_);
    return fds_[number - 1];
  }
  absl::Status WaitForNews(size_t number) {
    MutexLock lock(mutex_);
    while (news_.size() < number) changed_.Wait(mutex_);
    return news_[number - 1];
  }
  // Waits for this many connections or state changes. Returns false if the state changes came
  // first.
  bool WaitForConnectionOrNews(size_t connections, size_t news) {
    MutexLock lock(mutex_);
    while (fds_.size() < connections && news_.size() < news) changed_.Wait(mutex_);
    return news_.size() < news;
  }
  size_t news() {
    MutexLock lock(mutex_);
    return news_.size();
  }
  size_t CloseAll() {
    MutexLock lock(mutex_);
    for (int fd : fds_) close(fd);
    const size_t closed = fds_.size();
    fds_.clear();
    return closed;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<int> fds_ PSD_GUARDED_BY(mutex_);
  std::vector<absl::Status> news_ PSD_GUARDED_BY(mutex_);
};

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

std::unique_ptr<ConnectionListener> Listen(const std::string& address = "127.0.0.1:0") {
  auto listener = ConnectionListener::Bind(address, absl::Seconds(1), absl::Seconds(1));
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

TEST(ConnectionListener, HandsOverWhatConnects) {
  Taken taken;
  auto listener = Listen();
  taken.Start(*listener);
  const int client = ConnectTo(listener->port());
  const int served = taken.WaitForConnection(1);
  int no_delay = 0;
  socklen_t size = sizeof(no_delay);
  getsockopt(served, IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
  EXPECT_EQ(no_delay, 1);
  EXPECT_EQ(write(client, "x", 1), 1);
  listener->Stop();
  close(client);
  EXPECT_EQ(taken.news(), 0u);
}

TEST(ConnectionListener, ListensOnBothFamiliesAtOnePort) {
  Taken taken;
  auto listener = Listen("localhost:0");
  taken.Start(*listener);
  const int client = ConnectTo(listener->port());
  taken.WaitForConnection(1);
  listener->Stop();
  close(client);
}

TEST(ConnectionListener, SaysWhyItCannotListen) {
  auto first = Listen();
  const std::string address = absl::StrCat("127.0.0.1:", first->port());
  const absl::Status taken =
      ConnectionListener::Bind(address, absl::Seconds(1), absl::Seconds(1)).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(taken.message(), address)) << taken;
  EXPECT_TRUE(absl::StrContains(taken.message(), "in use")) << taken;
  for (const char* bad : {"localhost", "no.such.host.invalid:1", "127.0.0.1:x"}) {
    EXPECT_EQ(ConnectionListener::Bind(bad, absl::Seconds(1), absl::Seconds(1)).status().code(),
              absl::StatusCode::kUnavailable)
        << bad;
  }
}

// Waits for bytes or for the end of the connection. Returns true if the other end has ended it.
bool WaitForEnd(int fd) {
  char byte = 0;
  return recv(fd, &byte, 1, 0) <= 0;
}

TEST(ConnectionListener, OfTooManyThatSayNothingTheOldestEnd) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {160, before.rlim_max};  // a quarter of the unreserved descriptors is 35
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Taken taken;
  auto listener = *ConnectionListener::Bind("127.0.0.1:0", absl::Seconds(60), absl::Hours(1));
  taken.Start(*listener);
  std::vector<int> clients;
  for (size_t i = 0; i < 40; ++i) {
    clients.push_back(ConnectTo(listener->port()));
    const int served = taken.WaitForConnection(i + 1);
    if (i != 2) continue;
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    ASSERT_EQ(getpeername(served, reinterpret_cast<sockaddr*>(&peer), &size), 0);
    listener->unheard().Heard(absl::StrCat("ipv4:", PeerName(peer)));
  }
  EXPECT_EQ(listener->unheard().size(), 35u);
  for (size_t i : {0, 1, 3, 4}) EXPECT_TRUE(WaitForEnd(clients[i])) << i;
  for (size_t i : {2, 5, 39}) {
    EXPECT_EQ(write(taken.WaitForConnection(i + 1), "x", 1), 1);
    EXPECT_FALSE(WaitForEnd(clients[i])) << i;
  }
  listener->Stop();
  for (int fd : clients) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(UnheardConnections, EndWhenTheirTimeIsOverUnlessTheyWereHeard) {
  UnheardConnections unheard(absl::Seconds(5));
  const absl::Time start = absl::UnixEpoch();
  int ends[3][2];
  for (auto& pair : ends) ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(unheard.EndSilent(start), absl::InfiniteFuture());
  for (int i = 0; i < 3; ++i) {
    unheard.Add(ends[i][0], absl::StrCat("10.0.0.5:", i), 10, start + absl::Seconds(i));
  }
  EXPECT_EQ(unheard.EndSilent(start), start + absl::Seconds(5));
  unheard.Heard("ipv4:10.0.0.5:1");
  unheard.Heard("nonsense");
  EXPECT_EQ(unheard.EndSilent(start + absl::Seconds(6)), start + absl::Seconds(7));
  EXPECT_EQ(unheard.size(), 1u);
  EXPECT_TRUE(WaitForEnd(ends[0][1]));
  for (int i : {1, 2}) {
    EXPECT_EQ(write(ends[i][0], "x", 1), 1);
    EXPECT_FALSE(WaitForEnd(ends[i][1])) << i;
  }
  for (auto& pair : ends) {
    close(pair[0]);
    close(pair[1]);
  }
}

TEST(PeerName, IsTheSameForASocketAndForACall) {
  sockaddr_storage storage = {};
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(41234);
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(PeerName(storage), "127.0.0.1:41234");
  EXPECT_EQ(PeerName("ipv4:127.0.0.1:41234"), "127.0.0.1:41234");
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(7);
  v6.sin6_addr = in6addr_loopback;
  EXPECT_EQ(PeerName(storage), "[::1]:7");
  EXPECT_EQ(PeerName("ipv6:%5B::1%5D:7"), "[::1]:7");
  ASSERT_EQ(inet_pton(AF_INET6, "::ffff:10.0.0.5", &v6.sin6_addr), 1);
  EXPECT_EQ(PeerName(storage), "10.0.0.5:7") << "as gRPC says it";
}

TEST(ConnectionListener, OutOfDescriptorsItRefusesSaysSoAndRecovers) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {128, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Taken taken;
  auto listener = Listen();
  taken.Start(*listener);
  for (int round = 0; round < 2; ++round) {
    std::vector<int> clients;
    do {
      clients.push_back(ConnectTo(listener->port()));
    } while (taken.WaitForConnectionOrNews(clients.size(), 2 * round + 1));
    const absl::Status why = taken.WaitForNews(2 * round + 1);
    EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(absl::StrContains(why.message(), "of 128 file descriptors")) << why;
    for (int fd : clients) close(fd);
    EXPECT_GT(taken.CloseAll(), 10u);
    const int again = ConnectTo(listener->port());
    EXPECT_TRUE(taken.WaitForNews(2 * round + 2).ok());
    taken.WaitForConnection(1);
    close(again);
    taken.CloseAll();
  }
  listener->Stop();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace psd::carrier
