// The proxy itself: what it carries arrives whole, in order, and not too early.

#include "core/carrier/faulty/tcp_route.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace psd::carrier {
namespace {

// A connection through a route.
class TcpRouteTest : public ::testing::Test {
 protected:
  TcpRouteTest() : listener_(ListenOnLoopback(&port_)) {}
  ~TcpRouteTest() override {
    for (int fd : {near_, far_, listener_}) close(fd);
  }

  void ConnectThrough(const TcpRoute& route) {
    near_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string text = route.address();
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(text.substr(text.rfind(':') + 1))));
    ASSERT_EQ(connect(near_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    far_ = accept(listener_, nullptr, nullptr);
    ASSERT_GE(far_, 0);
  }

  std::string target() const { return absl::StrCat("127.0.0.1:", port_); }

  int port_ = 0;
  int listener_;
  int near_ = -1;
  int far_ = -1;
};

// The byte at a position. Its period divides no power of two, so a lost or repeated block shows.
char ByteAt(size_t position) {
  return static_cast<char>(position % 251);
}

void SendBytes(int fd, size_t bytes) {
  std::vector<char> block;
  for (size_t sent = 0; sent < bytes;) {
    block.resize(std::min(bytes - sent, size_t{1} << 20));
    for (size_t i = 0; i < block.size(); ++i) block[i] = ByteAt(sent + i);
    for (size_t done = 0; done < block.size();) {
      const ssize_t part = send(fd, block.data() + done, block.size() - done, MSG_NOSIGNAL);
      if (part <= 0) return;
      done += static_cast<size_t>(part);
    }
    sent += block.size();
  }
  shutdown(fd, SHUT_WR);
}

// Returns how many bytes came until the end of the input, or until one was wrong.
size_t CountRightBytes(int fd) {
  std::vector<char> block(size_t{1} << 20);
  size_t received = 0;
  while (true) {
    const ssize_t part = recv(fd, block.data(), block.size(), 0);
    if (part <= 0) return received;
    for (ssize_t i = 0; i < part; ++i, ++received) {
      if (block[static_cast<size_t>(i)] != ByteAt(received)) return received;
    }
  }
}

TEST_F(TcpRouteTest, EveryByteArrivesInOrderAlthoughMoreAreSentThanMayBeUnderWay) {
  constexpr size_t kBytes = (size_t{80} << 20) + 12345;
  for (const absl::Duration one_way : {absl::ZeroDuration(), absl::Milliseconds(5)}) {
    TcpRoute route(target(), one_way);
    ConnectThrough(route);
    std::thread sender([this] { SendBytes(near_, kBytes); });
    EXPECT_EQ(CountRightBytes(far_), kBytes);
    sender.join();
    EXPECT_EQ(route.connections(), 1u);
    close(std::exchange(near_, -1));
    close(std::exchange(far_, -1));
  }
}

TEST_F(TcpRouteTest, ByteArrivesNotBeforeItsDelayInBothDirections) {
  constexpr absl::Duration kOneWay = absl::Milliseconds(20);
  TcpRoute route(target(), kOneWay);
  ConnectThrough(route);
  const absl::Time start = absl::Now();
  char byte = 'a';
  ASSERT_EQ(send(near_, &byte, 1, 0), 1);
  ASSERT_EQ(recv(far_, &byte, 1, 0), 1);
  EXPECT_GE(absl::Now() - start, kOneWay);
  ASSERT_EQ(send(far_, &byte, 1, 0), 1);
  ASSERT_EQ(recv(near_, &byte, 1, 0), 1);
  EXPECT_GE(absl::Now() - start, 2 * kOneWay);
}

TEST_F(TcpRouteTest, CutEndsConnectionsAtBothEnds) {
  TcpRoute route(target());
  ConnectThrough(route);
  route.Cut();
  char byte;
  EXPECT_LE(recv(near_, &byte, 1, 0), 0);
  EXPECT_LE(recv(far_, &byte, 1, 0), 0);
}

}  // namespace
}  // namespace psd::carrier
