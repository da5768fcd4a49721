#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "bench/floors.h"
#include "bench/wire_floors.h"
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

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpFloor>> TcpFloor::Start(const Environment& environment,
                                                          size_t max_bytes) {
  auto server = Process::Start({environment.helper, "tcp"});
  if (!server.ok()) return server.status();
  const auto line = (*server)->ReadLine(absl::Seconds(20));
  if (!line.ok()) return line.status();
  int port = 0;
  if (!absl::SimpleAtoi(*line, &port)) return absl::InternalError("tcp floor: no port");
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(client);
    return absl::UnavailableError("tcp floor: cannot connect");
  }
  NoDelay(client);
  return std::unique_ptr<TcpFloor>(new TcpFloor(*std::move(server), client, max_bytes));
}

TcpFloor::TcpFloor(std::unique_ptr<Process> server, int socket, size_t max_bytes)
    : server_(std::move(server)), socket_(socket), received_(max_bytes / sizeof(float)) {}

TcpFloor::~TcpFloor() {
  close(socket_);
}

absl::Status TcpFloor::Pull(size_t bytes) {
  PSD_RETURN_IF_ERROR(Ask(bytes));
  PSD_RETURN_IF_ERROR(Receive(reinterpret_cast<std::byte*>(received_.data()), bytes));
  Consume(StreamRead(received_.data(), bytes / sizeof(float)));
  return absl::OkStatus();
}

absl::Status TcpFloor::Ask(size_t bytes) {
  const uint64_t request = bytes;
  if (WriteAll(socket_, &request, sizeof(request))) return absl::OkStatus();
  return absl::UnavailableError("tcp floor: the connection broke");
}

absl::Status TcpFloor::Receive(std::byte* to, size_t bytes) {
  if (ReadAll(socket_, to, bytes)) return absl::OkStatus();
  return absl::UnavailableError("tcp floor: the connection broke");
}

int ServeTcp() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0) return 1;
  if (listen(listener, 1) != 0) return 1;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int peer = accept(listener, nullptr, nullptr);
  if (peer < 0) return 1;
  NoDelay(peer);
  std::vector<char> payload;
  for (uint64_t bytes = 0; ReadAll(peer, &bytes, sizeof(bytes));) {
    if (payload.size() < bytes) payload.assign(bytes, 1);
    if (!WriteAll(peer, payload.data(), bytes)) break;
  }
  return 0;
}

}  // namespace psd::bench
