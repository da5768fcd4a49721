#include "server/daemon/notify.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace psd::server {
namespace {

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status NotifyServiceManager(const std::string& socket, absl::string_view state) {
  if (socket.empty()) return absl::OkStatus();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(address.sun_path) || (socket[0] != '/' && socket[0] != '@'))
    return absl::UnavailableError(absl::StrCat("NOTIFY_SOCKET: '", socket, "' is no socket"));
  std::memcpy(address.sun_path, socket.data(), socket.size());
  // "@name" is an abstract socket: its first byte is zero.
  if (socket[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return SystemError("NOTIFY_SOCKET");
  const ssize_t sent = ::sendto(descriptor, state.data(), state.size(), MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), length);
  const absl::Status status = sent < 0 ? SystemError(socket) : absl::OkStatus();
  ::close(descriptor);
  return status;
}

absl::Status WriteToDescriptor(int descriptor, absl::string_view text) {
  const std::string line = absl::StrCat(text, "\n");
  const ssize_t written = ::write(descriptor, line.data(), line.size());
  const bool whole = written == static_cast<ssize_t>(line.size());
  const absl::Status status =
      whole ? absl::OkStatus() : SystemError(absl::StrCat("descriptor ", descriptor));
  ::close(descriptor);
  return status;
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view text) {
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".tmp");
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return SystemError(path);
  absl::Status status = WriteToDescriptor(descriptor, text);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) status = SystemError(path);
  if (!status.ok()) ::unlink(temporary.c_str());
  return status.ok() ? status : Annotate(status, path);
}

}  // namespace psd::server
