#pragma once

namespace psd::server {

// Installs a handler for refusals of threads or memory that the process cannot do without. The
// process then prints what the system refused (with the number of bytes if it was memory), the
// limits and its usage, and ends with `exit_code` instead of aborting. The handler is needed
// because libraries throw exceptions for such refusals, on any thread, and nothing else catches
// them.
void ExitWhenExhausted(int exit_code);

}  // namespace psd::server
