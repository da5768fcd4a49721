#pragma once

// A network namespace for a process of a test.

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/unique_fd.h"

namespace psd::carrier::testing {

inline constexpr char kOwn[] = "10.77.0.1";
inline constexpr char kOwnSix[] = "fd00:77::1";

// Moves this process, which has one thread, to a network namespace of its own, whose only interface
// has the addresses above besides those of loopback. Returns false if the system does not let it.
inline bool EnterNamespace() {
  const std::string user = absl::StrCat(getuid(), " ", getuid(), " 1");
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  // Without this it would be nobody, whom no worker trusts.
  const UniqueFd users(open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC));
  if (write(users.get(), user.data(), user.size()) < 0) return false;
  const UniqueFd four(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const UniqueFd six(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq flags = {};
  std::strcpy(flags.ifr_name, "lo");
  flags.ifr_flags = IFF_UP;
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo:1");  // besides 127.0.0.1
  auto* const address = reinterpret_cast<sockaddr_in*>(&request.ifr_addr);
  address->sin_family = AF_INET;
  in6_ifreq request_six = {};
  request_six.ifr6_prefixlen = 64;
  request_six.ifr6_ifindex = static_cast<int>(if_nametoindex("lo"));
  return inet_pton(AF_INET, kOwn, &address->sin_addr) == 1 &&
         inet_pton(AF_INET6, kOwnSix, &request_six.ifr6_addr) == 1 &&
         ioctl(four.get(), SIOCSIFFLAGS, &flags) == 0 &&
         ioctl(four.get(), SIOCSIFADDR, &request) == 0 &&
         ioctl(six.get(), SIOCSIFADDR, &request_six) == 0;
}

}  // namespace psd::carrier::testing
