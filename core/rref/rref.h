#pragma once

// RRef: a counted reference to a value on any worker.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/store/value.h"

namespace psd {
class Executor;
}  // namespace psd

namespace psd::store {
struct Entry;
using EntryPtr = std::shared_ptr<const Entry>;  // see core/store/store.h
}  // namespace psd::store

namespace psd::rref {

// A handle. Copies share one fork, which is released when the last copy is destroyed. Cheap to
// copy.
// Thread-safe.
class RRef {
 public:
  RRef() = default;  // refers to nothing

  bool valid() const { return body_ != nullptr; }
  GlobalId value_id() const { return body_->value_id(); }
  const std::string& owner() const { return body_->owner(); }
  // The name if the value was created or looked up by name, otherwise empty.
  const std::string& name() const { return body_->name(); }
  // Whether this worker owns the value. The value may still be under creation.
  bool is_owner() const { return body_->is_owner(); }
  // Ready when the owner counts this fork. On the worker that asked for the value's creation, this
  // is when the creation has ended. Fails if the owner will never count the fork.
  Future<Unit> confirmed() const { return body_->confirmed().On(body_->continuations()); }
  // Ready when the value's creation has ended and the fork is counted. Fails if confirmed() fails,
  // and if the creation fails.
  Future<Unit> made() const { return body_->made().On(body_->continuations()); }
  // Whether made() is ready without an error.
  bool is_made() const { return body_->is_made(); }
  // Convert an RRef to a Value, for arguments and results, and back. FromValue returns an RRef that
  // refers to nothing if the value is not a reference.
  operator store::Value() const;  // NOLINT: a reference is a value
  static RRef FromValue(const store::Value& value);
  // The value's entry in the store, on its owner. Requires: valid().
  // Errors: FAILED_PRECONDITION on any other worker, and while the value is being made (wait for
  // made()); the error of the creation if there will be no value.
  absl::StatusOr<store::EntryPtr> local_entry() const { return body_->local_entry(); }
  // For example "RRef(layer1/weight, 1f3c9a0b44d2e677/12 on owner0, fork …/5)".
  std::string ToString() const;

  // The object that all copies of a handle share. Implemented by RRefContext. Its destructor ends
  // the fork.
  class Body : public store::RemoteReference {
   public:
    // Converts `reference`. All remote references in the store are bodies, because only this layer
    // creates them.
    static const Body& Of(const store::RemoteReference& reference) {
      return static_cast<const Body&>(reference);
    }

    virtual const std::string& name() const = 0;
    virtual GlobalId fork_id() const = 0;
    virtual bool is_owner() const = 0;
    virtual absl::StatusOr<store::EntryPtr> local_entry() const = 0;
    virtual Incarnation owner_incarnation() const = 0;
    // See RRef::confirmed and RRef::made.
    virtual Future<Unit> confirmed() const = 0;
    virtual Future<Unit> made() const = 0;
    virtual bool is_made() const = 0;
    // The executor for callbacks of users. Callbacks on the futures above run on the thread that
    // sets the result, so only psd's own short callbacks may be attached to them.
    virtual std::shared_ptr<Executor> continuations() const = 0;
    // Identifies the context that the body belongs to. The address is only compared.
    virtual const void* context() const = 0;
  };
  explicit RRef(std::shared_ptr<const Body> body) : body_(std::move(body)) {}
  const std::shared_ptr<const Body>& body() const { return body_; }

 private:
  std::shared_ptr<const Body> body_;  // shared by all copies of the handle
};

}  // namespace psd::rref
