#pragma once

// Telling whoever started the daemon that it is ready, or stopping.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psd::server {

// Sends `state` ("READY=1", "STOPPING=1") to the service manager that `socket` ($NOTIFY_SOCKET)
// names, as sd_notify(3) does. Nothing if it is empty.
// Errors: UNAVAILABLE naming the socket.
absl::Status NotifyServiceManager(const std::string& socket, absl::string_view state);

// Writes `text` and a newline to the file at `path` in one piece: a reader sees all of it or the
// file as it was. Errors: UNAVAILABLE naming the path and the reason.
absl::Status WriteWholeFile(const std::string& path, absl::string_view text);

// Writes `text` and a newline to the descriptor and closes it.
// Errors: UNAVAILABLE naming the descriptor and the reason.
absl::Status WriteToDescriptor(int descriptor, absl::string_view text);

}  // namespace psd::server
