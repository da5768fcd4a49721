#include "core/carrier/grpc/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace psd::carrier {
namespace {

// What bind or listen says about `target`; empty if both work.
std::string TryListen(const addrinfo& target) {
  int fd = socket(target.ai_family, target.ai_socktype, target.ai_protocol);
  if (fd < 0) return std::strerror(errno);
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  std::string reason;
  if (bind(fd, target.ai_addr, target.ai_addrlen) != 0 || listen(fd, 1) != 0) {
    reason = std::strerror(errno);
  }
  close(fd);
  return reason;
}

// Empty if the address can be listened at.
std::string WhyNot(const std::string& address) {
  size_t colon = address.rfind(':');
  if (colon == std::string::npos) return "it has no port; write host:port";
  absl::string_view host = absl::string_view(address).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = getaddrinfo(std::string(host).c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) return gai_strerror(error);
  std::string reason;
  for (addrinfo* target = found; target != nullptr && reason.empty(); target = target->ai_next) {
    reason = TryListen(*target);
  }
  freeaddrinfo(found);
  return reason;
}

}  // namespace

std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

absl::Status ProbeListen(const std::string& address) {
  std::string reason = WhyNot(address);
  if (reason.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot listen at ", address, ": ", reason));
}

}  // namespace psd::carrier
