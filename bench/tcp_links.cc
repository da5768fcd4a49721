#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "bench/rank_links.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace psd::bench {
namespace {

absl::Status Refused(const char* what) {
  return absl::ErrnoToStatus(errno, what);
}

using Connection = std::pair<UniqueFd, UniqueFd>;  // its two ends

absl::StatusOr<Connection> Connect() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), generic, &length) != 0) {
    return Refused("tcp links: cannot listen");
  }
  UniqueFd one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(one.get(), generic, length) != 0) return Refused("tcp links: cannot connect");
  UniqueFd other(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!other.valid()) return Refused("tcp links: cannot accept");
  const int no_delay = 1;
  for (const UniqueFd* end : {&one, &other})
    setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &no_delay, sizeof(no_delay));
  return Connection(std::move(one), std::move(other));
}

// The bytes that a rank still has to send to one other rank and to receive from it.
struct Transfer {
  int socket = -1;
  const char* out = nullptr;
  size_t out_bytes = 0;
  char* in = nullptr;
  size_t in_bytes = 0;

  // Returns whether something moved.
  bool Advance() {
    bool moved = false;
    if (out_bytes > 0) {
      const ssize_t sent = send(socket, out, out_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      PSD_CHECK(sent > 0 || errno == EAGAIN || errno == EINTR, "a connection to itself broke");
      if (sent > 0) {
        out += sent;
        out_bytes -= static_cast<size_t>(sent);
        moved = true;
      }
    }
    if (in_bytes > 0) {
      const ssize_t received = recv(socket, in, in_bytes, MSG_DONTWAIT);
      PSD_CHECK(received > 0 || (received < 0 && (errno == EAGAIN || errno == EINTR)),
                "a connection to itself broke");
      if (received > 0) {
        in += received;
        in_bytes -= static_cast<size_t>(received);
        moved = true;
      }
    }
    return moved;
  }
  bool done() const { return out_bytes == 0 && in_bytes == 0; }
};

// Sends and receives until all is done. Yields while nothing moves, and does not sleep.
void Run(std::vector<Transfer>& transfers) {
  for (bool done = false; !done;) {
    done = true;
    bool moved = false;
    for (Transfer& transfer : transfers) {
      moved = transfer.Advance() || moved;
      done = done && transfer.done();
    }
    if (!done && !moved) std::this_thread::yield();
  }
}

class TcpLinks : public RankLinks {
 public:
  // sockets[i][j] is the end of rank i of its connection to rank j.
  explicit TcpLinks(std::vector<std::vector<UniqueFd>> sockets) : sockets_(std::move(sockets)) {}

  void Exchange(size_t rank, const std::vector<Parcel>& parcels) override {
    std::vector<Transfer> transfers;
    for (const Parcel& parcel : parcels) {
      Transfer transfer;
      transfer.socket = sockets_[rank][parcel.other].get();
      transfer.out = reinterpret_cast<const char*>(parcel.out);
      transfer.out_bytes = parcel.out_elements * sizeof(float);
      transfer.in = reinterpret_cast<char*>(parcel.in);
      transfer.in_bytes = parcel.in_elements * sizeof(float);
      transfers.push_back(transfer);
    }
    Run(transfers);
  }

 private:
  const std::vector<std::vector<UniqueFd>> sockets_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankLinks>> LinkOverTcp(size_t ranks) {
  std::vector<std::vector<UniqueFd>> sockets(ranks);
  for (std::vector<UniqueFd>& row : sockets) row.resize(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    for (size_t j = i + 1; j < ranks; ++j) {
      PSD_ASSIGN_OR_RETURN(Connection connection, Connect());
      sockets[i][j] = std::move(connection.first);
      sockets[j][i] = std::move(connection.second);
    }
  }
  return std::make_unique<TcpLinks>(std::move(sockets));
}

}  // namespace psd::bench
