#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/floors.h"
#include "bench/wire_floors.h"
#include "core/base/host_port.h"
#include "core/base/status.h"

namespace psd::bench {
namespace {

bool ReadAll(int socket, void* to, size_t size) {
  for (auto* next = static_cast<char*>(to); size > 0;) {
    const ssize_t part = read(socket, next, size);
    if (part <= 0) return false;
    next += part;
    size -= static_cast<size_t>(part);
  }
  return true;
}

bool WriteAll(int socket, const void* from, size_t size) {
  for (auto* next = static_cast<const char*>(from); size > 0;) {
    const ssize_t part = write(socket, next, size);
    if (part <= 0) return false;
    next += part;
    size -= static_cast<size_t>(part);
  }
  return true;
}

void NoDelay(int socket) {
  const int one = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

// Returns an address for the system. Port 0 is any free port. Errors: INVALID_ARGUMENT unless
// `host` is an IPv4 address.
absl::StatusOr<sockaddr_in> ToSockAddr(const std::string& host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1) return address;
  return absl::InvalidArgumentError(absl::StrCat("tcp floor: ", host, " is no IPv4 address"));
}

// The first bytes of an exchange. The client sends `pushed_bytes` after them, and the server
// answers with `pulled_bytes` once it has read those.
struct Request {
  uint64_t pushed_bytes = 0;
  uint64_t pulled_bytes = 0;
};

// The least that can be pulled, which answers a push.
constexpr size_t kAnswerBytes = 64;

absl::Status Broken() {
  return absl::UnavailableError("tcp floor: the connection broke");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpFloor>> TcpFloor::Start(const Environment& environment,
                                                          size_t max_bytes) {
  PSD_ASSIGN_OR_RETURN(auto server, Server::Start(environment, {environment.helper, "tcp",
                                                                environment.network.host}));
  PSD_ASSIGN_OR_RETURN(const HostPort to, ParseHostPort(server->address()));
  PSD_ASSIGN_OR_RETURN(const sockaddr_in address, ToSockAddr(to.host, to.port));
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(client);
    return absl::UnavailableError("tcp floor: cannot connect");
  }
  NoDelay(client);
  return std::unique_ptr<TcpFloor>(new TcpFloor(std::move(server), client, max_bytes));
}

TcpFloor::TcpFloor(std::unique_ptr<Server> server, int socket, size_t max_bytes)
    : server_(std::move(server)),
      socket_(socket),
      payload_(std::max(max_bytes, kAnswerBytes) / sizeof(float)) {}

TcpFloor::~TcpFloor() {
  close(socket_);
}

absl::Status TcpFloor::Pull(size_t bytes) {
  PSD_RETURN_IF_ERROR(Ask(bytes));
  PSD_RETURN_IF_ERROR(Receive(reinterpret_cast<std::byte*>(payload_.data()), bytes));
  Consume(StreamRead(payload_.data(), bytes / sizeof(float)));
  return absl::OkStatus();
}

absl::Status TcpFloor::Push(size_t bytes) {
  const Request request = {bytes, kAnswerBytes};
  if (!WriteAll(socket_, &request, sizeof(request))) return Broken();
  if (!WriteAll(socket_, payload_.data(), bytes)) return Broken();
  return Receive(reinterpret_cast<std::byte*>(payload_.data()), kAnswerBytes);
}

absl::Status TcpFloor::Ask(size_t bytes) {
  const Request request = {0, bytes};
  return WriteAll(socket_, &request, sizeof(request)) ? absl::OkStatus() : Broken();
}

absl::Status TcpFloor::Receive(std::byte* to, size_t bytes) {
  return ReadAll(socket_, to, bytes) ? absl::OkStatus() : Broken();
}

int ServeTcp(const std::string& host) {
  absl::StatusOr<sockaddr_in> address = ToSockAddr(host, 0);
  if (!address.ok()) return 1;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  socklen_t length = sizeof(*address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&*address), length) != 0) return 1;
  if (listen(listener, 1) != 0) return 1;
  getsockname(listener, reinterpret_cast<sockaddr*>(&*address), &length);
  std::printf("%s:%d\n", host.c_str(), ntohs(address->sin_port));
  std::fflush(stdout);
  const int peer = accept(listener, nullptr, nullptr);
  if (peer < 0) return 1;
  NoDelay(peer);
  std::vector<float> payload;
  for (Request request; ReadAll(peer, &request, sizeof(request));) {
    const size_t bytes = std::max(request.pushed_bytes, request.pulled_bytes);
    if (payload.size() * sizeof(float) < bytes) payload.assign(bytes / sizeof(float) + 1, 1);
    if (!ReadAll(peer, payload.data(), request.pushed_bytes)) break;
    Consume(StreamRead(payload.data(), request.pushed_bytes / sizeof(float)));
    if (!WriteAll(peer, payload.data(), request.pulled_bytes)) break;
  }
  return 0;
}

}  // namespace psd::bench
