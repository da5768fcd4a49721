#pragma once

// Lets the system refuse calls of this process, as the profile of a container or a system without
// memory does.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

namespace psd {

struct RefusedCall {
  unsigned int number = 0;    // of the system call (SYS_mmap)
  unsigned int argument = 0;  // the place of the argument by which calls are chosen, from 0
  unsigned int value = 0;     // calls with this value there are refused
  int error = 0;              // with this errno
};

// From now on the system refuses these calls on all threads of this process, for ever: call it in a
// process that ends with the test. Returns false if the system takes no filter for calls.
inline bool Refuse(const RefusedCall& call) {
  // The lower half of the argument.
  const auto argument =
      static_cast<unsigned int>(offsetof(seccomp_data, args) + sizeof(__u64) * call.argument);
  // The second and third number of a comparison say how many steps to skip if it holds and if not.
  sock_filter steps[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, call.number},
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, argument},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call.value},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<unsigned int>(call.error)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog filter = {sizeof(steps) / sizeof(steps[0]), steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

}  // namespace psd
