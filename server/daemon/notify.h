#pragma once

// Tells the process that started the daemon that it is ready or stopping.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd::server {

// Sends `state` ("READY=1", "STOPPING=1") to the service manager at `socket` ($NOTIFY_SOCKET), as
// sd_notify(3) does. Does nothing if `socket` is empty.
// Errors: UNAVAILABLE naming the socket.
absl::Status NotifyServiceManager(const std::string& socket, absl::string_view state);

// Replaces the file at `path` by `text` and a newline, atomically: a reader sees the old file or
// the whole new one. Errors: UNAVAILABLE naming the path and the reason.
absl::Status WriteWholeFile(const std::string& path, absl::string_view text);

// Writes `text` and a newline to the descriptor and closes it.
// Errors: UNAVAILABLE naming the descriptor and the reason.
absl::Status WriteToDescriptor(int descriptor, absl::string_view text);

}  // namespace psd::server
