#pragma once

// Unix sockets of whole packets, over which two ends of a link introduce themselves, wake each
// other and notice each other's end.

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"

namespace psd::carrier {

// The address of a socket: "unix:/a/path", or "unix:@name" for a name without a file, which is seen
// only within one network namespace. "unix:@" is any free name.

struct UnixListener {
  UniqueFd fd;
  std::string address;                // as a peer dials it
  std::string path;                   // of the socket's file; empty if it has none
  std::pair<dev_t, ino_t> file = {};  // the device and the inode of that file
};
// Replaces the file of a socket whose process is gone, and no other file. Errors: INVALID_ARGUMENT
// for an address of another form; RESOURCE_EXHAUSTED naming the limit if the system has no socket;
// UNAVAILABLE naming the address and the system's reason.
absl::StatusOr<UnixListener> ListenUnix(const std::string& address);
// Removes the socket's file, if it has one that nobody has replaced since.
void RemoveFile(const UnixListener& listener);

// Errors: as ListenUnix; UNAVAILABLE with "refused" in its text if nobody listens there.
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& address);

// The process at the other end, as the system names it.
struct PeerProcess {
  pid_t pid = 0;
  uid_t uid = 0;
};
// Errors: UNAVAILABLE.
absl::StatusOr<PeerProcess> PeerOf(int fd);

enum class PacketKind : uint8_t {
  kHello = 1,    // introduces the sender, and passes the descriptor of its segment
  kBell = 2,     // there is something in a ring, or space in one
  kProbe = 3,    // asks for a sign of life
  kAlive = 4,    // answers a probe
  kRefusal = 5,  // the sender does not want the link; its body says why
  kSegment = 6,  // passes the descriptor of a segment in which lent messages lie
  // Passes a descriptor for the user of the carrier (passed_descriptors.h); its body is the name.
  // Comes before the hello.
  kDescriptor = 7,
};
inline constexpr size_t kMaxPacketBody = 512;

struct Packet {
  PacketKind kind = PacketKind::kBell;
  std::string body;
  // Passed with the packet. With kSegment and kDescriptor, it is not valid if this process had none
  // left for it.
  UniqueFd fd;
};

// Sends a packet without waiting. The body is cut to kMaxPacketBody bytes. `passed` is a descriptor
// to pass, or -1. Returns 0, or the system's error if the packet was dropped: the socket is full or
// has ended, or the descriptor cannot be passed.
int SendPacket(int fd, PacketKind kind, absl::string_view body = {}, int passed = -1);

// Tells the peer why this end closes the socket, which the caller does next, and drops what the
// peer has sent: the system would report an end with unread packets in place of the reason.
void RefusePeer(int fd, absl::string_view why);

// Receives no more, and drops the packets that were not read. To be called before a socket is
// closed, because the system would close the descriptors in them on this thread, and for some that
// takes long.
void DropUnread(int fd);

// Returns the next packet, or nullopt if there is none now. Errors: UNAVAILABLE if the other end is
// gone; INVALID_ARGUMENT if it sent a packet of no known kind, a descriptor where none belongs, or
// another number of them than belongs there; RESOURCE_EXHAUSTED naming the limit if this process
// has none left for a descriptor that it needs.
absl::StatusOr<std::optional<Packet>> ReceivePacket(int fd);

}  // namespace psd::carrier
