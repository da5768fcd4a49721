#pragma once

namespace psd::server {

// From now on, if the system gives this process no more threads or no more memory where it cannot
// go on without, the process says what was refused, which limits there are and how much it uses,
// and ends with `exit_code` instead of aborting. Libraries report such refusals by exceptions, from
// any thread; nobody else handles these.
void ExitWhenExhausted(int exit_code);

}  // namespace psd::server
