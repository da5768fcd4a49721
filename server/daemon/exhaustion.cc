#include "server/daemon/exhaustion.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

#include "core/base/system_limits.h"

namespace psd::server {
namespace {

// No code in this file may allocate memory, because there may be none.

int exit_code_when_exhausted = 1;
std::terminate_handler otherwise = nullptr;

// The size of the latest request for memory of this thread that the system refused; 0 if unknown.
thread_local size_t refused_bytes = 0;

[[noreturn]] void Report(const char* refused) {
  char limits[1024];
  DescribeSystemLimits(limits, sizeof(limits));
  char text[1200];
  const int length =
      std::snprintf(text, sizeof(text), "psd: the system refuses %s; %s\n", refused, limits);
  // The result is ignored: the process ends whether or not anybody reads the text.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, static_cast<size_t>(length));
  std::_Exit(exit_code_when_exhausted);
}

void OnTerminate() {
  try {
    if (std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    char what[64] = "memory";
    if (refused_bytes != 0)
      std::snprintf(what, sizeof(what), "%zu bytes of memory at once", refused_bytes);
    Report(what);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again) Report("a thread");
  } catch (...) {
  }
  otherwise();
}

// Libraries that take memory from the system themselves abort when it is refused (Abseil does).
// This function returns for other causes, and the process then aborts.
void OnAbort(int /*signal*/) {
  constexpr size_t kBytes = size_t{1} << 20;
  if (mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
      MAP_FAILED)
    Report("memory");
}

}  // namespace

void ExitWhenExhausted(int exit_code) {
  signal(SIGABRT, &OnAbort);
  exit_code_when_exhausted = exit_code;
  otherwise = std::set_terminate(&OnTerminate);
}

}  // namespace psd::server

// Works like the library's operator, but notes the size of a refused request, which std::bad_alloc
// does not contain. It is weak, so that a program with its own operator keeps that one. Sanitizers
// bring theirs.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((weak)) void* operator new(size_t size) {
  while (true) {
    if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
    psd::server::refused_bytes = size;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
__attribute__((weak)) void operator delete(void* memory) noexcept {
  std::free(memory);
}
__attribute__((weak)) void operator delete(void* memory, size_t /*size*/) noexcept {
  ::operator delete(memory);  // it may be the program's own
}
#endif
