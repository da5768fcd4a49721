#include "core/carrier/shm/host_carrier.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/host_port.h"
#include "core/base/remedy.h"
#include "core/base/status.h"

namespace psd::carrier {
namespace {

// A worker that does not introduce itself within this time is dialled over the network.
constexpr absl::Duration kIntroductionTimeout = absl::Seconds(2);
constexpr char kLoopback[] = "127.0.0.1";
// The longest path of a socket.
constexpr size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;
// The text of the shared-memory carrier's error if no process listens at a socket.
constexpr char kNobodyListens[] = "connection refused";

// The names of psd's sockets.
std::string SocketName(const std::string& host, int port) {
  return absl::StrCat("unix:@psd/", HostPort{host, port}.ToString());
}

// Whether an interface of this network namespace has the address.
bool IsOwnAddress(const std::string& host) {
  in_addr four = {};
  in6_addr six = {};
  const bool is_four = inet_pton(AF_INET, host.c_str(), &four) == 1;
  if (!is_four && inet_pton(AF_INET6, host.c_str(), &six) != 1) return false;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* one = all; one != nullptr && !found; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    if (is_four && one->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      found = address->sin_addr.s_addr == four.s_addr;
    } else if (!is_four && one->ifa_addr->sa_family == AF_INET6) {
      const auto* address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      found = std::memcmp(&address->sin6_addr, &six, sizeof(six)) == 0;
    }
  }
  freeifaddrs(all);
  return found;
}

// A link over the network that knows why it does not use shared memory.
class DetourLink : public Link {
 public:
  DetourLink(std::shared_ptr<Link> inner, std::string why)
      : inner_(std::move(inner)), why_(std::move(why)) {}

  absl::Status Send(Message message) override { return inner_->Send(std::move(message)); }
  void HelpUntil(absl::FunctionRef<bool()> done) override { inner_->HelpUntil(done); }
  void Close() override { inner_->Close(); }
  std::string Description() const override { return inner_->Description(); }
  std::string WhyNotShared() const override { return why_; }

 private:
  const std::shared_ptr<Link> inner_;  // shared with its carrier
  const std::string why_;
};

class HostCarrier : public Carrier {
 public:
  HostCarrier(std::shared_ptr<Carrier> network, absl::StatusOr<std::shared_ptr<Carrier>> shm,
              std::unique_ptr<const SocketFolder> folder, std::shared_ptr<Logger> logger)
      : network_(std::move(network)),
        shm_(std::move(shm)),
        folder_(std::move(folder)),
        logger_(std::move(logger)) {}
  ~HostCarrier() override { Shutdown(); }

  std::string Name() const override {
    return shm_.ok() ? absl::StrCat(network_->Name(), "+", (*shm_)->Name()) : network_->Name();
  }

  absl::StatusOr<std::string> Listen(const std::string& address, AcceptCallback accept) override {
    PSD_ASSIGN_OR_RETURN(std::string bound, network_->Listen(address, AcceptDetours(accept)));
    if (!shm_.ok()) return bound;
    ListenAt(SocketOf(bound), accept, "workers of this host reach this one over the network only");
    if (folder_ != nullptr) {
      ListenAt(
          folder_->OwnSocket(bound), accept,
          "workers of other network namespaces reach this one over the network only. If another "
          "worker answers to its address in the folder, they reach that one: give each job a "
          "folder of its own");
    }
    return bound;
  }

  void Connect(const std::string& address, absl::Duration timeout,
               std::shared_ptr<LinkHandler> handler, ConnectCallback done) override {
    Attempt attempt;
    attempt.address = address;
    attempt.until = Clock::Steady().Now() + timeout;
    attempt.handler = std::move(handler);
    attempt.done = std::move(done);
    if (shm_.ok()) {
      attempt.sockets = SocketsFor(address);
      const auto shared = folder_ == nullptr ? std::nullopt : folder_->SocketAt(address);
      attempt.why =
          attempt.sockets.empty()
              ? absl::StrCat(address, " is no address of this host; names are not looked up")
              : absl::StrCat("no worker of this network namespace offers shared memory at ",
                             address);
      if (shared.has_value()) {
        absl::StrAppend(&attempt.why, "; nor is it in the shared folder");
        attempt.sockets.push_back(*shared);
      }
    } else {
      attempt.why = std::string(shm_.status().message());
    }
    ConnectNext(std::move(attempt));
  }

  SharedTraffic shared_traffic() const override {
    return shm_.ok() ? (*shm_)->shared_traffic() : SharedTraffic();
  }

  void Shutdown() override {
    stopped_.store(true);
    if (shm_.ok()) (*shm_)->Shutdown();
    network_->Shutdown();
  }

 private:
  struct Attempt {
    std::string address;
    std::vector<std::string> sockets;  // sockets that were not tried yet
    std::string why;                   // why shared memory is not used so far
    absl::Time until;
    std::shared_ptr<LinkHandler> handler;
    ConnectCallback done;
  };

  void ListenAt(absl::StatusOr<std::string> socket, const AcceptCallback& accept,
                absl::string_view otherwise) {
    if (socket.ok()) socket = (*shm_)->Listen(*socket, accept);
    if (socket.ok()) return;
    logger_->Log(LogLevel::kWarning, "shared_memory_unused", otherwise,
                 {{"why", socket.status().message()}});
  }

  void ConnectNext(Attempt attempt) {
    if (stopped_.load()) return attempt.done(absl::UnavailableError("this carrier was shut down"));
    if (attempt.sockets.empty()) return ConnectNetwork(std::move(attempt));
    const absl::Duration left = attempt.until - Clock::Steady().Now();
    const std::string socket = attempt.sockets.front();
    attempt.sockets.erase(attempt.sockets.begin());
    std::shared_ptr<LinkHandler> handler = attempt.handler;
    // Shutdown waits for the callback, so `this` outlives it. If the callback held a reference,
    // that could be the last one, and Shutdown would wait on the thread for which it waits.
    auto result =
        [this, attempt = std::move(attempt)](absl::StatusOr<std::shared_ptr<Link>> link) mutable {
          if (link.ok()) return attempt.done(std::move(link));
          NoteFailure(link.status(), attempt);
          ConnectNext(std::move(attempt));
        };
    (*shm_)->Connect(socket, std::min(left / 2, kIntroductionTimeout), std::move(handler),
                     std::move(result));
  }

  void ConnectNetwork(Attempt attempt) {
    const absl::Duration left = attempt.until - Clock::Steady().Now();
    auto result = [why = std::move(attempt.why), done = std::move(attempt.done)](
                      absl::StatusOr<std::shared_ptr<Link>> link) mutable {
      if (link.ok()) link = std::make_shared<DetourLink>(*std::move(link), std::move(why));
      done(std::move(link));
    };
    network_->Connect(attempt.address, left, std::move(attempt.handler), std::move(result));
  }

  // Keeps a failure at a socket at which somebody listens: the network is used then.
  void NoteFailure(const absl::Status& failure, Attempt& attempt) {
    if (absl::StrContains(failure.message(), kNobodyListens)) return;
    // The same worker may listen at the other sockets, and would say the same.
    attempt.sockets.clear();
    attempt.why = std::string(failure.message());
    logger_->Log(LogLevel::kWarning, "shared_memory_unused",
                 absl::StrCat(attempt.address, " is dialled over the network: ", attempt.why));
  }

  AcceptCallback AcceptDetours(AcceptCallback accept) const {
    const std::string why =
        shm_.ok() ? "the peer dialled over the network" : std::string(shm_.status().message());
    return [why, accept = std::move(accept)](std::shared_ptr<Link> link) {
      return accept(std::make_shared<DetourLink>(std::move(link), why));
    };
  }

  const std::shared_ptr<Carrier> network_;
  const absl::StatusOr<std::shared_ptr<Carrier>> shm_;
  const std::unique_ptr<const SocketFolder> folder_;  // null if there is none
  const std::shared_ptr<Logger> logger_;
  // Once set, links that failed to use shared memory are not dialled over the network.
  std::atomic<bool> stopped_{false};
};

}  // namespace

absl::StatusOr<std::string> SocketOf(const std::string& bound) {
  PSD_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(bound));
  if (address.IsWildcard()) return SocketName("0.0.0.0", address.port);
  return SocketName(address.host == "localhost" ? kLoopback : address.host, address.port);
}

std::vector<std::string> SocketsFor(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return {};
  const std::string host = parsed->host == "localhost" ? kLoopback : parsed->host;
  if (!parsed->IsLoopback() && !IsOwnAddress(host)) return {};
  return {SocketName(host, parsed->port), SocketName("0.0.0.0", parsed->port)};
}

std::optional<std::string> SocketFolder::SocketAt(const std::string& address) const {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok() || parsed->IsLoopback() || parsed->IsWildcard() || parsed->port == 0)
    return std::nullopt;
  const std::string file = absl::StrCat(path_, "/", parsed->ToString());
  if (file.size() > kMaxSocketPathBytes) return std::nullopt;
  return absl::StrCat("unix:", file);
}

absl::StatusOr<std::string> SocketFolder::OwnSocket(const std::string& bound) const {
  PSD_ASSIGN_OR_RETURN(const std::string address, AdvertisedAddress(bound, advertise_));
  const std::optional<std::string> socket = SocketAt(address);
  if (socket.has_value()) return *socket;
  return WithRemedy(
      absl::FailedPreconditionError(
          absl::StrCat("no other network namespace can dial ", address, ", or that and the folder ",
                       path_, " have more than ", kMaxSocketPathBytes - 1, " bytes")),
      "listen on an address that is not loopback, or set a short `advertise`");
}

std::shared_ptr<Carrier> NewHostCarrier(std::shared_ptr<Carrier> network,
                                        absl::StatusOr<std::shared_ptr<Carrier>> shm,
                                        std::unique_ptr<const SocketFolder> folder,
                                        std::shared_ptr<Logger> logger) {
  return std::make_shared<HostCarrier>(std::move(network), std::move(shm), std::move(folder),
                                       std::move(logger));
}

}  // namespace psd::carrier
