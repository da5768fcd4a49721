// Peers open connections to an owner and never call anything on them.
//
//   bazel run -c opt //tests/attack:connection_attack_test -- --rounds=10
//
// repeats the attack and prints a line about every round.

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "gtest/gtest.h"
#include "tests/client/test_world.h"
#include "tests/crash/process_world.h"
#include "tests/crash/training.h"

ABSL_FLAG(int, rounds, 1, "how often the attack is made");

namespace psd::attack {
namespace {

int PortOf(const OwnerAddress& owner) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(owner.address.substr(owner.address.rfind(':') + 1), &port));
  return port;
}

void Step(crash::Training& training) {
  EXPECT_TRUE(training.Pull().ok());
  EXPECT_TRUE(training.Backward().ok());
  const absl::Status stepped = training.Step().status();
  EXPECT_TRUE(stepped.ok()) << stepped;
}

// A connection that sends `words` and nothing more.
class SilentConnection {
 public:
  SilentConnection(int port, const std::string& words) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    // The owner may have ended the connection already.
    send(fd_, words.data(), words.size(), MSG_NOSIGNAL);
  }
  ~SilentConnection() { close(fd_); }
  SilentConnection(const SilentConnection&) = delete;
  SilentConnection& operator=(const SilentConnection&) = delete;

  void AwaitEnd() const {
    char bytes[256];
    while (recv(fd_, bytes, sizeof(bytes), 0) > 0) {
    }
  }

 private:
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

// Returns nothing, the beginning of an HTTP/2 handshake, or all of it.
std::string Words(int number) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  if (number % 3 == 0) return "";
  if (number % 3 == 1) return preface.substr(0, 10);
  return preface + std::string("\0\0\0\4\0\0\0\0\0", 9) + std::string("\0\0\0\4\1\0\0\0\0", 9);
}

TEST(ConnectionAttack, ConnectionsThatNeverCallLetOthersIn) {
  constexpr int kConnections = 240, kNewcomers = 5;
  crash::Daemon daemon;
  const int port = PortOf(daemon.address());
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    std::vector<std::unique_ptr<SilentConnection>> silent;
    for (int i = 0; i < kConnections; ++i) {
      silent.push_back(std::make_unique<SilentConnection>(port, Words(i)));
    }
    for (int i = 0; i < kNewcomers; ++i) {
      const auto newcomer = StartTrainer(absl::StrCat("newcomer", i), {daemon.address()});
      crash::Training training =
          Must(crash::Training::Create(*newcomer, {daemon.address().name}, 16));
      Step(training);
    }
    for (const auto& connection : silent) connection->AwaitEnd();
    std::printf("round %d: %d newcomers trained, and all of %d silent connections were ended\n",
                round, kNewcomers, kConnections);
  }
}

}  // namespace
}  // namespace psd::attack

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  // The limit applies to this process, with its side of the connections, and to the owners that it
  // starts, which have fewer descriptors for connections than connections come.
  const rlimit descriptors = {400, 400};
  if (setrlimit(RLIMIT_NOFILE, &descriptors) != 0) return 1;
  return RUN_ALL_TESTS();
}
