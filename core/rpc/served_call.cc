#include "core/rpc/served_call.h"

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/rpc/agent_core.h"

namespace psd::rpc {

void CancelState::Cancel() {
  std::vector<Task> callbacks;
  {
    MutexLock lock(mutex_);
    if (cancelled() || finished_) return;
    cancelled_.store(true, std::memory_order_release);
    callbacks.swap(callbacks_);
  }
  for (Task& callback : callbacks) callback();
}

void CancelState::OnCancel(Task callback) {
  {
    MutexLock lock(mutex_);
    if (finished_) return;
    if (!cancelled()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void CancelState::Finish() {
  std::vector<Task> dropped;  // destroyed after the lock is released, because they may own anything
  MutexLock lock(mutex_);
  finished_ = true;
  dropped.swap(callbacks_);
}

ServedCall::ServedCall(std::shared_ptr<AgentCore> agent, Header header, carrier::Message message,
                       absl::Time deadline)
    : agent_(std::move(agent)),
      cancel_(std::make_shared<CancelState>()),
      header_(std::move(header)),
      deadline_(deadline),
      payload_{std::move(header_.payload), std::move(message.buffers)} {
  if (message.charge != nullptr) charges_.push_back(std::move(message.charge));
}

ServedCall::~ServedCall() {
  if (replied_.load(std::memory_order_relaxed)) return;
  Reply(absl::InternalError(absl::StrCat("the function of ", method(), " gave no answer")), {});
}

const std::string* ServedCall::attachment(uint32_t tag) const {
  return FindAttachment(header_.attachments, tag);
}

absl::Status ServedCall::Charge(size_t bytes) {
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, agent_->Charge(bytes));
  if (charge != nullptr) charges_.push_back(std::move(charge));
  return absl::OkStatus();
}

void ServedCall::ForgetMessage() {
  payload_ = {};
  header_.attachments = {};
  header_.status = absl::OkStatus();
  charges_.clear();
}

bool ServedCall::cancelled() const {
  return cancel_->cancelled() || agent_->Now() >= deadline_;
}

bool ServedCall::BeginApply() {
  return agent_->Now() < deadline_ && agent_->BeginApply(*this);
}

void ServedCall::Reply(absl::StatusOr<Payload> result, std::vector<Attachment> attachments) {
  if (replied_.exchange(true)) return;
  cancel_->Finish();
  // A call that is given up here at its deadline was not cancelled, and its caller, whose timer may
  // be late, should not be told so.
  if (absl::IsCancelled(result.status()) && agent_->Now() >= deadline_) {
    result = absl::DeadlineExceededError(
        absl::StrCat(method(), " was given up at its deadline: ", result.status().message()));
  }
  agent_->SendAnswer(*this, std::move(result), std::move(attachments));
}

// The buffers are not part of the fingerprint. Those of a message that found no room here have not
// been read, and a later copy of the message may bring them.
RequestMeta ServedCall::TakeMeta() {
  const uint64_t fingerprint =
      header_.sequence == 0 || header_.cut ? 0 : absl::HashOf(header_.method, header_.payload);
  return {header_.call_id, header_.sequence,       header_.epoch,   header_.callee_incarnation,
          deadline_,       std::move(header_.ack), header_.attempt, fingerprint};
}

}  // namespace psd::rpc
