#pragma once

// A worker's session that a test controls directly: it sends what it is told to, and acknowledges
// nothing.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/mutex.h"
#include "core/carrier/carrier.h"
#include "core/rpc/header.h"

namespace psd::attack {

// Thread-safe.
class RawSession {
 public:
  // Opens a session of the worker `name` at `address`. An owner without memory may refuse it.
  RawSession(carrier::Carrier& network, const std::string& address, const std::string& name);
  ~RawSession();
  RawSession(const RawSession&) = delete;
  RawSession& operator=(const RawSession&) = delete;

  bool open() const { return epoch_ != 0; }

  // Requires: open(). Sends a call under a new id and, for a mutation, a new sequence number.
  // Nothing is acknowledged. `fields` are further fields of the header, encoded: the owner would
  // give the session up as silent while a huge header is encoded here. Errors: those of the link.
  absl::Status Call(bool mutation, rpc::Header call, absl::string_view fields = {});

  struct Answers {
    int done = 0;
    int refused = 0;  // RESOURCE_EXHAUSTED
    absl::Status other;
    bool closed = false;
  };
  Answers answers() const;
  // Waits until `calls` were answered or the owner has closed the link.
  Answers Await(int calls) const;

 private:
  class Handler;

  const std::shared_ptr<Handler> handler_;  // shared with the link
  std::shared_ptr<carrier::Link> link_;
  Incarnation callee_ = 0;
  uint64_t epoch_ = 0;
  Mutex mutex_;
  uint64_t calls_ PSD_GUARDED_BY(mutex_) = 0;
  uint64_t mutations_ PSD_GUARDED_BY(mutex_) = 0;
};

}  // namespace psd::attack
