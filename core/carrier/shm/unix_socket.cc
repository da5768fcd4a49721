#include "core/carrier/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"

namespace psd::carrier {
namespace {

constexpr absl::string_view kScheme = "unix:";
// A dial that finds the line full fails at once, so it is as long as the system allows.
constexpr int kBacklog = 4096;
// The most descriptors that the system passes with one packet (SCM_MAX_FD).
constexpr size_t kMostPassed = 253;

struct Address {
  sockaddr_un bytes = {};
  socklen_t length = 0;
  std::string path;  // empty for a name without a file

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

absl::StatusOr<Address> Parse(const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kScheme) || rest.empty() || (rest[0] != '/' && rest[0] != '@')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is no address of a Unix socket; \"unix:/path\" and \"unix:@name\" are"));
  }
  Address address;
  if (rest.size() >= sizeof(address.bytes.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the address ", text, " has ", rest.size(),
                                                   " bytes; at most ",
                                                   sizeof(address.bytes.sun_path) - 1, " work"));
  }
  address.bytes.sun_family = AF_UNIX;
  std::memcpy(address.bytes.sun_path, rest.data(), rest.size());
  const bool named = rest[0] == '/';
  if (named) address.path = std::string(rest);
  if (!named) address.bytes.sun_path[0] = '\0';
  const size_t name_bytes = rest == "@" ? 0 : rest.size() + (named ? 1 : 0);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_bytes);
  return address;
}

absl::Status Failed(absl::string_view what, const std::string& address, int error) {
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
    return SystemRefusal(absl::StrCat("a socket to ", what, " ", address), error);
  }
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", address, ": ", std::strerror(error)));
}

absl::StatusOr<UniqueFd> NewSocket(absl::string_view what, const std::string& address) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Failed(what, address, errno);
  return fd;
}

// Removes the file of a socket whose process is gone. Other files stay: a connection to one of them
// is refused too.
void RemoveIfDead(const Address& address) {
  struct stat file = {};
  if (lstat(address.path.c_str(), &file) != 0 || !S_ISSOCK(file.st_mode)) return;
  const UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (connect(fd.get(), address.get(), address.length) != 0 && errno == ECONNREFUSED) {
    unlink(address.path.c_str());
  }
}

bool IsKind(uint8_t kind) {
  return kind >= static_cast<uint8_t>(PacketKind::kHello) &&
         kind <= static_cast<uint8_t>(PacketKind::kDescriptor);
}

// Takes the descriptors that came with a packet, and closes all but one. Returns their number.
// All that came are taken, because the system closes the others on this thread, and the close of a
// TCP connection may wait for as long as the peer has asked for.
size_t TakePassed(msghdr& message, UniqueFd& taken) {
  size_t number = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int passed = -1;
      std::memcpy(&passed, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      const linger none = {0, 0};
      setsockopt(passed, SOL_SOCKET, SO_LINGER, &none, sizeof(none));  // fails for other files
      taken = UniqueFd(passed);
    }
    number += count;
  }
  return number;
}

// Checks the number of descriptors that came with a packet of a known kind.
absl::Status CheckPassed(PacketKind kind, size_t number, bool cut_off) {
  const bool passes = kind == PacketKind::kSegment || kind == PacketKind::kDescriptor;
  if (cut_off && number < kMostPassed) {
    if (passes) return absl::OkStatus();
    return SystemRefusal("a descriptor that the peer passes", EMFILE);
  }
  const size_t most = passes || kind == PacketKind::kHello ? 1 : 0;
  if (number <= most && (number == 1 || !passes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a packet of kind ", static_cast<int>(kind),
                                                 " passes ", number, " descriptors, not ", most));
}

}  // namespace

absl::StatusOr<UnixListener> ListenUnix(const std::string& text) {
  PSD_ASSIGN_OR_RETURN(Address address, Parse(text));
  UnixListener listener;
  PSD_ASSIGN_OR_RETURN(listener.fd, NewSocket("listen at", text));
  if (!address.path.empty()) RemoveIfDead(address);
  if (bind(listener.fd.get(), address.get(), address.length) != 0 ||
      listen(listener.fd.get(), kBacklog) != 0) {
    return Failed("listen at", text, errno);
  }
  address.length = sizeof(address.bytes);
  if (getsockname(listener.fd.get(), address.get(), &address.length) != 0) {
    return Failed("listen at", text, errno);
  }
  struct stat file = {};
  if (!address.path.empty() && lstat(address.path.c_str(), &file) != 0) {
    return Failed("listen at", text, errno);
  }
  listener.path = address.path;
  listener.file = {file.st_dev, file.st_ino};
  listener.address = text;
  if (address.path.empty()) {
    const size_t name_bytes = address.length - offsetof(sockaddr_un, sun_path);
    listener.address =
        absl::StrCat(kScheme, "@", absl::string_view(address.bytes.sun_path, name_bytes).substr(1));
  }
  return listener;
}

void RemoveFile(const UnixListener& listener) {
  struct stat file = {};
  if (listener.path.empty() || lstat(listener.path.c_str(), &file) != 0) return;
  if (listener.file == std::make_pair(file.st_dev, file.st_ino)) unlink(listener.path.c_str());
}

absl::StatusOr<UniqueFd> ConnectUnix(const std::string& text) {
  PSD_ASSIGN_OR_RETURN(Address address, Parse(text));
  PSD_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket("dial", text));
  if (connect(fd.get(), address.get(), address.length) == 0) return fd;
  if (errno == ECONNREFUSED || errno == ENOENT) {
    return absl::UnavailableError(absl::StrCat("connection refused: nobody listens at ", text));
  }
  return Failed("dial", text, errno);
}

absl::StatusOr<PeerProcess> PeerOf(int fd) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("the system does not say who the peer is: ", std::strerror(errno)));
  }
  return PeerProcess{credentials.pid, credentials.uid};
}

int SendPacket(int fd, PacketKind kind, absl::string_view body, int passed) {
  auto kind_byte = static_cast<uint8_t>(kind);
  body = body.substr(0, kMaxPacketBody);
  iovec parts[2] = {{&kind_byte, 1}, {const_cast<char*>(body.data()), body.size()}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &passed, sizeof(int));
  }
  // A peer that is gone is noticed by reading; one with a full socket has enough to wake up for.
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

void RefusePeer(int fd, absl::string_view why) {
  SendPacket(fd, PacketKind::kRefusal, why);
  DropUnread(fd);
}

void DropUnread(int fd) {
  shutdown(fd, SHUT_RD);
  for (bool more = true; more;) {
    const absl::StatusOr<std::optional<Packet>> packet = ReceivePacket(fd);
    more = packet.ok() ? packet->has_value() : !absl::IsUnavailable(packet.status());
  }
}

absl::StatusOr<std::optional<Packet>> ReceivePacket(int fd) {
  uint8_t kind = 0;
  char body[kMaxPacketBody];
  iovec parts[2] = {{&kind, 1}, {body, sizeof(body)}};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostPassed * sizeof(int))];
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  // If the other end closed its socket with unread packets in it, the system says that first, and
  // then still gives what that end had sent.
  if (bytes < 0 && errno == ECONNRESET)
    bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<Packet>();
  if (bytes < 0) {
    return absl::UnavailableError(absl::StrCat("its socket ended: ", std::strerror(errno)));
  }
  Packet packet;
  const size_t passed = TakePassed(message, packet.fd);
  if (bytes == 0) return absl::UnavailableError("its socket was closed");
  if (!IsKind(kind) || (message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of kind ", kind, " and at least ", bytes - 1, " bytes"));
  }
  packet.kind = static_cast<PacketKind>(kind);
  PSD_RETURN_IF_ERROR(CheckPassed(packet.kind, passed, (message.msg_flags & MSG_CTRUNC) != 0));
  packet.body.assign(body, static_cast<size_t>(bytes) - 1);
  return std::optional<Packet>(std::move(packet));
}

}  // namespace psd::carrier
