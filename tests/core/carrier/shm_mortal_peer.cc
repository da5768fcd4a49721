// A peer of the shared-memory carrier that exchanges messages with a worker that sends them back,
// and gets a signal at a given step. Large messages are lent in both directions.
//
//   shm_mortal_peer ADDRESS SIGNAL STEP
//
// Its steps are the system calls with which it makes, passes and maps memory (for rings and for
// lent messages) and wakes the other end, and the moments before a message is sent and after one
// has arrived. Exits with 0 if it is done before that step, and with 3 if the other end ends the
// link.

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/base/buffer.h"
#include "core/carrier/shm/shm_factory.h"
#include "tests/core/carrier/lending/lending_carrier.h"
#include "tests/core/carrier/recorder.h"

namespace {

int signal_to_get = 0;
int last_step = 0;
std::atomic<int> steps{0};

void Step() {
  if (++steps == last_step) raise(signal_to_get);
}

template <typename... Args>
long SystemCall(long number, Args... args) {
  Step();
  return syscall(number, args...);
}

}  // namespace

// These replace the library's functions in this program.
extern "C" {
int memfd_create(const char* name, unsigned flags) noexcept {
  return static_cast<int>(SystemCall(SYS_memfd_create, name, flags));
}
int ftruncate(int fd, off_t length) noexcept {
  return static_cast<int>(SystemCall(SYS_ftruncate, fd, length));
}
int posix_fallocate(int fd, off_t offset, off_t length) {
  return SystemCall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}
int connect(int fd, const sockaddr* address, socklen_t length) {
  return static_cast<int>(SystemCall(SYS_connect, fd, address, length));
}
int shutdown(int fd, int how) noexcept {
  return static_cast<int>(SystemCall(SYS_shutdown, fd, how));
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return SystemCall(SYS_sendmsg, fd, message, flags);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return SystemCall(SYS_recvmsg, fd, message, flags);
}
}

namespace psd::carrier {
namespace {

// The rings are small, so that messages wait for space and the ends wake each other often.
ShmCarrierOptions SmallRings() {
  ShmCarrierOptions options;
  options.rings = {4096, 8192, 2};
  options.limits.max_send_queue_bytes = 4'000'000;
  options.keepalive_time = options.keepalive_timeout = absl::Seconds(60);
  return options;
}

Message MessageOf(size_t bytes) {
  Message message;
  message.header = std::string(1, static_cast<char>('a' + bytes % 26));
  message.buffers.push_back(Buffer::FromString(std::string(bytes, message.header[0])));
  return message;
}

int Exchange(const std::string& address) {
  auto carrier = LendingCarrier(*NewShmCarrier(SmallRings()));
  const auto recorder = std::make_shared<Recorder>();
  recorder->SetOnMessage([](Link&, const Message&) { Step(); });
  recorder->CountOnly();
  auto link = ConnectAndWait(carrier, address, recorder);
  if (!link.ok()) return 3;
  size_t sent = 0;
  for (const size_t bytes : {10, 3000, 20'000, 300'000, 100'000, 10, 300'000, 400'000}) {
    Step();
    if (!(*link)->Send(MessageOf(bytes)).ok()) return 3;
    // Every second message is sent together with the one before it.
    if (++sent % 2 == 1) continue;
    while (recorder->count() < sent) {
      if (!recorder->closed().empty()) return 3;
      usleep(100);
    }
  }
  Step();
  (*link)->Close();
  recorder->WaitForClosed();
  Step();
  carrier.Shutdown();
  recorder->SetLink(nullptr);
  return 0;
}

}  // namespace
}  // namespace psd::carrier

int main(int count, char** arguments) {
  if (count != 4) return 2;
  signal_to_get = std::atoi(arguments[2]);
  last_step = std::atoi(arguments[3]);
  return psd::carrier::Exchange(arguments[1]);
}
