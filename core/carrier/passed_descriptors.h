#pragma once

// Descriptors of files that the two ends of a link within one host pass to each other, beside their
// messages. A carrier knows their names, never what they are.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"

namespace psd::carrier {

// A process of this host at the other end of links. All links of one carrier to one process have
// the same object. Shared by the carrier and everybody who cares for the process. Thread-safe.
class HostProcess {
 public:
  // `name` is for logs: "process 77 of user 1000".
  explicit HostProcess(std::string name) : name_(std::move(name)) {}
  HostProcess(const HostProcess&) = delete;
  HostProcess& operator=(const HostProcess&) = delete;

  const std::string& name() const { return name_; }

  // Calls `callback` once when the process has ended, on a thread of the carrier and without a
  // lock, or now if it has ended. Callbacks are called in the order in which they were added. After
  // the carrier was shut down, nobody notices the end.
  void OnEnded(std::function<void()> callback) PSD_EXCLUDES(mutex_);

  // To be called once, by the part of the carrier that has seen the end.
  void End() PSD_EXCLUDES(mutex_);

 private:
  const std::string name_;
  Mutex mutex_;  // leaf
  bool ended_ PSD_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> callbacks_ PSD_GUARDED_BY(mutex_);
};

// A descriptor to be passed.
struct NamedDescriptor {
  std::string name;                    // at most 512 bytes
  std::shared_ptr<const UniqueFd> fd;  // shared by all links that pass it
};

// The most descriptors that one end of a link passes.
inline constexpr size_t kMostPassedDescriptors = 16;

// The user of passed descriptors, at both ends. Each end passes its descriptors when it opens the
// link, before its first message, so a handler that has got a message has got all descriptors of
// that link. Thread-safe. Called on the carrier's threads and on those that open a link, without a
// lock; must not block.
class DescriptorUser {
 public:
  virtual ~DescriptorUser() = default;

  // Returns what `peer` is to get over a link that is being opened: at most kMostPassedDescriptors.
  virtual std::vector<NamedDescriptor> ForPeer(const std::shared_ptr<HostProcess>& peer) = 0;
  // A descriptor has come from `peer`, on a thread of the carrier. It may be any file. An error
  // ends the link.
  virtual absl::Status OnPassed(const std::shared_ptr<HostProcess>& peer, const std::string& name,
                                UniqueFd fd) = 0;
  // A link to the process that `peer` names passes nothing, or not all, in one direction or both.
  virtual void OnNotPassed(const std::string& peer, const absl::Status& why) = 0;
};

}  // namespace psd::carrier
