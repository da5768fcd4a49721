#include "core/base/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/quoted.h"
#include "core/base/status.h"

namespace psd {
namespace {

absl::Status Expected(absl::string_view what, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", Quoted(text)));
}

}  // namespace

bool HostPort::IsLoopback() const {
  if (host == "localhost" || host == "::1") return true;
  // Accepts only digits and dots after "127.", because "127.example.org" is an ordinary name.
  absl::string_view rest = host;
  if (!absl::ConsumePrefix(&rest, "127.")) return false;
  return std::all_of(rest.begin(), rest.end(),
                     [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
}

bool HostPort::IsWildcard() const {
  in_addr v4 = {};
  if (inet_aton(host.c_str(), &v4) != 0) return v4.s_addr == INADDR_ANY;
  in6_addr v6 = {};
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) != 1) return false;
  // The last four bytes hold an IPv4 address if the address is mapped.
  return IN6_IS_ADDR_UNSPECIFIED(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) &&
          std::all_of(v6.s6_addr + 12, v6.s6_addr + 16, [](uint8_t byte) { return byte == 0; }));
}

std::string HostPort::ToString() const {
  const bool ipv6 = absl::StrContains(host, ':');
  return absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  constexpr absl::string_view kWhat = "host:port (an IPv6 address in brackets)";
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return Expected(kWhat, address);
  absl::string_view host = address.substr(0, colon), port = address.substr(colon + 1);
  const bool bracketed = absl::ConsumePrefix(&host, "[");
  if (bracketed != absl::ConsumeSuffix(&host, "]") || host.empty()) return Expected(kWhat, address);
  for (char c : host) {
    const bool fits = absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' ||
                      (bracketed && (c == ':' || c == '%'));
    if (!fits) return Expected(kWhat, address);
  }
  if (host.size() > kMaxHostBytes)
    return Expected(absl::StrCat("a host of at most ", kMaxHostBytes, " bytes"), address);
  HostPort result;
  result.host = std::string(host);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(port, &result.port) || result.port > 65535)
    return Expected("a port from 0 to 65535 behind the last ':'", address);
  return result;
}

absl::StatusOr<HostPort> ParseHostPortToDial(absl::string_view address) {
  PSD_ASSIGN_OR_RETURN(HostPort parsed, ParseHostPort(address));
  if (parsed.port == 0) return Expected("the port at which somebody listens, not 0", address);
  return parsed;
}

absl::StatusOr<std::string> AdvertisedAddress(absl::string_view bound,
                                              absl::string_view advertise) {
  if (advertise.empty()) return std::string(bound);
  absl::StatusOr<HostPort> address = ParseHostPort(advertise);
  const bool without_port = !address.ok();
  if (without_port) {
    address = ParseHostPort(absl::StrCat(advertise, ":0"));
    if (!address.ok())
      return Expected("host or host:port (an IPv6 address in brackets)", advertise);
  }
  if (address->IsWildcard()) {
    return Expected("an address that others can dial; this names all interfaces", advertise);
  }
  if (without_port) {
    PSD_ASSIGN_OR_RETURN(const HostPort listening, ParseHostPort(bound));
    address->port = listening.port;
  } else if (address->port == 0) {
    return Expected("a port that others can dial, or none: then it is the one listened on",
                    advertise);
  }
  return address->ToString();
}

bool NeedsAdvertise(absl::string_view listen) {
  const absl::StatusOr<HostPort> address = ParseHostPort(listen);
  return address.ok() && address->IsWildcard();
}

}  // namespace psd
