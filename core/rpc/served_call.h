#pragma once

// A call that this worker serves: the implementation of ServerCall.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/carrier/carrier.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/session_types.h"

namespace psd::rpc {

class AgentCore;

// Whether a served call is cancelled, and the callbacks for that. Shared by the session machine and
// the call. Thread-safe.
class CancelState : public Opaque {
 public:
  void Cancel() PSD_EXCLUDES(mutex_);
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  void OnCancel(Task callback) PSD_EXCLUDES(mutex_);
  // Drops all callbacks; those that are added later are dropped too.
  void Finish() PSD_EXCLUDES(mutex_);

 private:
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;  // leaf
  bool finished_ PSD_GUARDED_BY(mutex_) = false;
  std::vector<Task> callbacks_ PSD_GUARDED_BY(mutex_);
};

// Identifies the call to which an answer belongs.
struct AnsweredCall {
  uint64_t epoch = 0;
  CallId id = 0;
  uint64_t sequence = 0;  // 0: a read
};

// An answer that was sent, and may be remembered. The message never changes.
struct KeptAnswer : Opaque {
  KeptAnswer(const AnsweredCall& call, carrier::Message message, std::vector<Task> on_dropped,
             MemoryCharge charge = nullptr)
      : call(call),
        message(std::move(message)),
        on_dropped(std::move(on_dropped)),
        charge(std::move(charge)) {}
  const AnsweredCall call;
  const carrier::Message message;  // empty for a read, whose answer is not needed again
  // to be run by the code that performs its one AnswerDroppedAction
  std::vector<Task> on_dropped;
  const MemoryCharge charge;  // for the parts of `message` that are charged nowhere else
};

class ServedCall : public ServerCall {
 public:
  // `header` is the header of the request, decoded from `message`.
  ServedCall(std::shared_ptr<AgentCore> agent, Header header, carrier::Message message,
             absl::Time deadline);
  ~ServedCall() override;

  const PeerInfo& caller() const override { return caller_; }
  uint64_t session_epoch() const override { return header_.epoch; }
  absl::Time deadline() const override { return deadline_; }
  const std::string& method() const override { return header_.method; }
  Payload& payload() override { return payload_; }
  const std::string* attachment(uint32_t tag) const override;
  absl::Status Charge(size_t bytes) override;
  void ForgetMessage() override;
  bool cancelled() const override;
  void OnCancel(Task callback) override { cancel_->OnCancel(std::move(callback)); }
  bool BeginApply() override;
  void OnAnswerDropped(Task callback) override { on_dropped_.push_back(std::move(callback)); }
  void Reply(absl::StatusOr<Payload> result, std::vector<Attachment> attachments) override;

  // ---- To be called by the agent.
  const std::shared_ptr<CancelState>& cancel_state() const { return cancel_; }
  CallId id() const { return header_.call_id; }
  uint64_t sequence() const { return header_.sequence; }
  RequestMeta TakeMeta();
  std::vector<Task> TakeOnDropped() { return std::move(on_dropped_); }
  // Must be called before the function gets the call.
  void set_caller(PeerInfo caller) { caller_ = std::move(caller); }
  // Marks a call that will not be run, so that its destructor sends no answer.
  void Discard() { replied_.store(true, std::memory_order_relaxed); }

 private:
  const std::shared_ptr<AgentCore> agent_;     // shared with all calls of the agent
  const std::shared_ptr<CancelState> cancel_;  // shared with the session machine
  Header header_;
  const absl::Time deadline_;
  PeerInfo caller_;
  Payload payload_;
  std::vector<MemoryCharge> charges_;  // for the header, and what the function has charged
  std::vector<Task> on_dropped_;       // used only by the thread that replies
  std::atomic<bool> replied_{false};
};

}  // namespace psd::rpc
