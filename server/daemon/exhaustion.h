#pragma once

namespace psd::server {

// Installs a handler for the case that the system refuses threads or memory that the process cannot
// do without. The process then prints what was refused, with the number of bytes if it was memory,
// the limits and its usage, and ends with `exit_code` instead of aborting. (Libraries report such
// refusals by exceptions, on any thread, which nothing else catches.)
void ExitWhenExhausted(int exit_code);

}  // namespace psd::server
