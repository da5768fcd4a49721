#pragma once

// RRef: a counted reference to a value, wherever it lives.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::rref {

// A handle: copies share one fork, which is released when the last of them goes. Thread-safe.
// Cheap to copy.
class RRef {
 public:
  RRef() = default;  // refers to nothing

  bool valid() const { return body_ != nullptr; }
  GlobalId value_id() const { return body_->value_id(); }
  const std::string& owner() const { return body_->owner(); }
  // The name, if it was made or looked up by one; else empty.
  const std::string& name() const { return body_->name(); }
  // Whether the value is this worker's own; it may be under creation still.
  bool is_owner() const { return body_->is_owner(); }
  // Ready when the owner counts this fork: for who made the value, when its creation has ended.
  // Fails with why that never will be.
  Future<Unit> confirmed() const { return body_->confirmed().On(body_->continuations()); }
  // Ready when the value's creation has ended, and the fork is counted. Fails as confirmed, or if
  // the creation can leave no value.
  Future<Unit> made() const { return body_->made().On(body_->continuations()); }
  // Whether it has been made: what made() says, without a future.
  bool is_made() const { return body_->is_made(); }
  // As an argument or a result; and back. FromValue of what is no reference refers to nothing.
  operator store::Value() const;  // NOLINT: a reference is a value
  static RRef FromValue(const store::Value& value);
  // The entry, on its owner. Requires: valid().
  // Errors: FAILED_PRECONDITION on any other worker, and while it is being made (made() tells when
  // that has ended); why there will be none.
  absl::StatusOr<store::EntryPtr> local_entry() const { return body_->local_entry(); }
  // "RRef(layer1/weight, 1f3c9a0b44d2e677/12 on owner0, fork …/5)".
  std::string ToString() const;

  // What is behind a handle. Implemented by RRefContext; ends the fork when destroyed.
  class Body : public store::RemoteReference {
   public:
    // What `reference` is: whatever the store holds of them was made by this layer.
    static const Body& Of(const store::RemoteReference& reference) {
      return static_cast<const Body&>(reference);
    }

    virtual const std::string& name() const = 0;
    virtual GlobalId fork_id() const = 0;
    virtual bool is_owner() const = 0;
    virtual absl::StatusOr<store::EntryPtr> local_entry() const = 0;
    virtual Incarnation owner_incarnation() const = 0;
    // Ready when the owner counts the fork (its creation, if this worker caused it, has ended);
    // fails with why it never will.
    virtual Future<Unit> confirmed() const = 0;
    // See RRef.
    virtual Future<Unit> made() const = 0;
    virtual bool is_made() const = 0;
    // Where callbacks of users run. The futures above are for short ones of psd's own, which run
    // on the thread that sets the result.
    virtual std::shared_ptr<Executor> continuations() const = 0;
    // Of which context it is: an address to compare.
    virtual const void* context() const = 0;
  };
  explicit RRef(std::shared_ptr<const Body> body) : body_(std::move(body)) {}
  const std::shared_ptr<const Body>& body() const { return body_; }

 private:
  std::shared_ptr<const Body> body_;  // shared by all copies of the handle
};

}  // namespace psd::rref
