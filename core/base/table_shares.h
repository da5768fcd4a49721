#pragma once

// Limits the places that one peer may hold in a table that untrusted peers fill.

#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/remedy.h"

namespace psd {

// Counts the taken places of a table by host and by connection. While at most half of the places
// are taken there is no limit, so that many peers behind one address are not locked out. After that
// a host may hold as many places as are free, and a connection half as many. Hence no host can fill
// the table, and a host without a place can still get one. Thread-compatible.
class TableShares {
 public:
  explicit TableShares(size_t places) : places_(places) {}

  // Checks whether `peer` may take one more place. `peer` is an address with a port, such as
  // "grpc 10.0.0.5:41234"; the host is the part before the last colon.
  // Errors: RESOURCE_EXHAUSTED naming the host or the connection, the places that it holds and its
  // limit.
  absl::Status Check(absl::string_view peer) const {
    if (taken_ >= places_) return Refusal("");
    if (taken_ <= places_ / 2) return absl::OkStatus();
    const size_t free = places_ - taken_;
    const size_t of_host = CountOf(hosts_, HostOf(peer));
    const size_t of_connection = CountOf(connections_, peer);
    if (of_host >= free) return Refusal(Excess("the host of ", peer, of_host, free));
    if (of_connection > 0 && of_connection >= free / 2) {
      return Refusal(Excess("the connection from ", peer, of_connection, free / 2));
    }
    return absl::OkStatus();
  }
  // Checks whether `peer` may take a place and give up a place of `former` for it. The same host
  // may always do that; for another host this is Check.
  absl::Status CheckExchange(absl::string_view former, absl::string_view peer) const {
    return HostOf(former) == HostOf(peer) ? absl::OkStatus() : Check(peer);
  }
  // Takes a place. Requires: Check(peer) or CheckExchange returned OK.
  void Take(absl::string_view peer) {
    ++taken_;
    ++hosts_[HostOf(peer)];
    ++connections_[peer];
  }
  // Gives a place back. Requires: there is a Take(peer) that was not released yet.
  void Release(absl::string_view peer) {
    --taken_;
    Decrease(hosts_, HostOf(peer));
    Decrease(connections_, peer);
  }

 private:
  using Counts = absl::flat_hash_map<std::string, size_t>;

  static absl::string_view HostOf(absl::string_view peer) {
    return peer.substr(0, peer.rfind(':'));
  }
  static size_t CountOf(const Counts& counts, absl::string_view key) {
    auto found = counts.find(key);
    return found == counts.end() ? 0 : found->second;
  }
  static void Decrease(Counts& counts, absl::string_view key) {
    auto found = counts.find(key);
    if (--found->second == 0) counts.erase(found);
  }
  static std::string Excess(absl::string_view who, absl::string_view peer, size_t held,
                            size_t limit) {
    return absl::StrCat(", ", held, " of them by ", who, peer, ", which may hold ", limit,
                        " while so few are left");
  }
  absl::Status Refusal(const std::string& excess) const {
    return WithRemedy(absl::ResourceExhaustedError(
                          absl::StrCat(taken_, " of ", places_, " sessions are open", excess)),
                      "close some, or wait for leases to end");
  }

  const size_t places_;
  size_t taken_ = 0;
  Counts hosts_;
  Counts connections_;
};

}  // namespace psd
