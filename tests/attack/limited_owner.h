#pragma once

// A daemon with a memory budget, in a container whose limit is the budget divided by 0.8.

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>

#include "client/psd.h"
#include "tests/crash/process_world.h"

namespace psd::attack {

// A control group with a memory limit, of version 1 or 2. If this process may not make one, the
// group is empty, and nothing enforces the limit.
class MemoryGroup {
 public:
  explicit MemoryGroup(size_t limit_bytes);
  ~MemoryGroup();
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool enforced() const { return !folder_.empty(); }
  // A command that starts a given program in this group. Empty if there is no group.
  // group.
  std::vector<std::string> Runner() const;

 private:
  std::string folder_;
};

// Thread-compatible.
class LimitedOwner {
 public:
  explicit LimitedOwner(size_t budget_bytes);

  OwnerAddress address() const { return daemon_.address(); }
  size_t limit_bytes() const { return limit_bytes_; }
  bool enforced() const { return group_.enforced(); }
  bool Runs();

  // The resident memory of the daemon, in bytes: the present value, and the highest so far.
  size_t Resident() const { return StatusField("VmRSS:"); }
  size_t MostResident() const { return StatusField("VmHWM:"); }

 private:
  // Returns a field of /proc/PID/status that is in kB, or 0 if the daemon is gone.
  size_t StatusField(const std::string& name) const;

  const size_t limit_bytes_;
  MemoryGroup group_;
  crash::Daemon daemon_;
};

}  // namespace psd::attack
