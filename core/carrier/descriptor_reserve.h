#pragma once

// Reserves a part of the process's file descriptors for other uses than accepted connections.

#include <sys/resource.h>

#include <cstddef>

#include "absl/status/status.h"

namespace psd::carrier {

// Returns the number of file descriptors that this process may have; RLIM_INFINITY means no limit.
rlim_t DescriptorLimit();

// Checks whether an accepted connection may keep the descriptor `fd`. An eighth of `limit`, at most
// 64, is left for files and for connections that this process opens. Errors: RESOURCE_EXHAUSTED
// naming use and limit.
absl::Status CheckDescriptor(int fd, rlim_t limit);

// Returns how many connections may exist that were accepted at one socket and on which nothing has
// come yet: a quarter of the descriptors that connections may take. A worker has three sockets at
// most, so some are always left for the others.
size_t UnheardBound(rlim_t limit);

}  // namespace psd::carrier
