#pragma once

// The implementation of RpcAgent: the session machines under one lock, and links, threads and
// timers around them.
//
// Every event (a message, a closed link, a timer, a call from this worker) is passed to the
// machines under the lock. They return Actions, which are performed after the lock is released. So
// no callback, send or function ever runs under the lock.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "core/base/mutex.h"
#include "core/carrier/carrier.h"
#include "core/rpc/admission.h"
#include "core/rpc/client_call.h"
#include "core/rpc/rpc_agent.h"
#include "core/rpc/served_call.h"
#include "core/rpc/worker_sessions.h"

namespace psd::rpc {

class LinkHandler;

// Thread-safe. Shared by the agent and the calls that it serves; timers, handlers of links and
// handles of calls refer to it weakly.
class AgentCore : public std::enable_shared_from_this<AgentCore> {
 public:
  explicit AgentCore(AgentOptions options);

  // ---- To be called before the first event only.
  void RegisterMethod(Method method);
  std::vector<std::string> Methods() const;
  void OnSessionEnded(std::function<void(const PeerInfo&, uint64_t)> callback);
  void OnGoodbye(std::function<void(const PeerInfo&, uint64_t)> callback);
  void OnSessionLost(std::function<void(const PeerInfo&, uint64_t, const absl::Status&)> callback);

  void OnDraining(std::function<void()> callback);

  const AgentOptions& options() const { return options_; }
  Admission& admission() { return admission_; }
  Access& access() { return access_; }
  absl::StatusOr<std::string> Start(const std::string& address);
  void AddPeer(const std::string& name, const std::string& address) PSD_EXCLUDES(mutex_);
  // Starts a call. It completes at once if the timeout is invalid or the worker is shutting down.
  void StartCall(const std::shared_ptr<ClientCall>& call, CallSpec spec, absl::Duration timeout)
      PSD_EXCLUDES(mutex_);
  void CancelCall(const ClientCall& call) PSD_EXCLUDES(mutex_);
  MethodKind KindOf(const Request& request) const;
  SessionOnPeer SessionOn(const std::string& peer) const PSD_EXCLUDES(mutex_);
  std::vector<PeerStatus> Peers() const PSD_EXCLUDES(mutex_);
  Reach ReachOf(const std::string& name) const PSD_EXCLUDES(mutex_);
  void BeginDraining() PSD_EXCLUDES(mutex_);
  void AwaitIdle(absl::Duration limit) PSD_EXCLUDES(mutex_);
  void Shutdown(absl::Duration drain) PSD_EXCLUDES(mutex_);

  // ---- Events from links.
  void OnMessage(LinkId link, carrier::Message message) PSD_EXCLUDES(mutex_);
  void OnRefused(LinkId link, std::string header, const absl::Status& why) PSD_EXCLUDES(mutex_);
  void OnClosed(LinkId link, const absl::Status& reason) PSD_EXCLUDES(mutex_);

  // ---- From served calls.
  absl::Time Now() const { return options_.clock->Now(); }
  // Returns null if memory is not charged.
  absl::StatusOr<MemoryCharge> Charge(size_t bytes) {
    return options_.memory == nullptr ? MemoryCharge() : options_.memory->Charge(bytes);
  }
  bool BeginApply(const ServedCall& call) PSD_EXCLUDES(mutex_);
  void SendAnswer(ServedCall& call, absl::StatusOr<Payload> result,
                  std::vector<Attachment> attachments) PSD_EXCLUDES(mutex_);

 private:
  using LinkPtr = std::shared_ptr<carrier::Link>;

  // ---- Handling of events.
  // Runs `input(now, actions)` on the machines under the lock, then performs the actions.
  template <typename Input>
  void Drive(Input input) PSD_EXCLUDES(mutex_);
  absl::Time WakeIfEarlier() PSD_REQUIRES(mutex_);
  void ArmTimer(absl::Time when) PSD_EXCLUDES(mutex_);
  void OnTimer(absl::Time when) PSD_EXCLUDES(mutex_);
  LinkId AddLink(LinkPtr link) PSD_REQUIRES(mutex_);
  std::shared_ptr<carrier::LinkHandler> Accept(LinkPtr link) PSD_EXCLUDES(mutex_);
  // If `refused` is not OK, there was no room for the buffers of `message`. A request is then
  // answered with that error and not run. If `message` is the reply to a call of ours, the call
  // fails with that error.
  void Take(LinkId link, absl::StatusOr<Header> header, carrier::Message message,
            const absl::Status& refused) PSD_EXCLUDES(mutex_);
  void OnRequest(LinkId link, Header header, carrier::Message message, const absl::Status& refused)
      PSD_EXCLUDES(mutex_);
  void OnReply(LinkId link, Header header, std::vector<Buffer> buffers) PSD_EXCLUDES(mutex_);
  // Handles a control message.
  void OnControl(LinkId link, const Header& header) PSD_EXCLUDES(mutex_);
  void LogOpened(const std::string& peer, const carrier::Link& link);
  void EndLink(LinkId link, const absl::Status& reason) PSD_EXCLUDES(mutex_);

  // ---- Performing actions.
  void Perform(Actions actions) PSD_EXCLUDES(mutex_);
  void Do(DialAction action) PSD_EXCLUDES(mutex_);
  void Do(CloseLinkAction action) PSD_EXCLUDES(mutex_);
  void Do(std::unique_ptr<SendControlAction> action) PSD_EXCLUDES(mutex_);
  void Do(SendRequestAction action) PSD_EXCLUDES(mutex_);
  void Do(SendAnswerAction action) PSD_EXCLUDES(mutex_);
  void Do(CompleteAction action);
  void Do(CancelWorkAction action);
  void Do(AnswerDroppedAction action);
  void Do(AnswerTakenAction /*action*/) {}
  void Do(SessionEndedAction action);
  void Do(SessionLostAction action);
  void OnDialed(const std::string& peer, LinkPtr link, LinkHandler& handler) PSD_EXCLUDES(mutex_);
  void OnDialFailed(const std::string& peer, bool refused, const absl::Status& status)
      PSD_EXCLUDES(mutex_);
  void OnSendRefused(const std::string& peer, CallId id, const absl::Status& status)
      PSD_EXCLUDES(mutex_);
  void DialSelf() PSD_EXCLUDES(mutex_);
  LinkPtr FindLink(LinkId link) const PSD_EXCLUDES(mutex_);
  absl::Status Send(LinkId link, carrier::Message message) PSD_EXCLUDES(mutex_);
  void OnAnswerRefused(const std::shared_ptr<KeptAnswer>& answer) PSD_EXCLUDES(mutex_);
  std::shared_ptr<KeptAnswer> Keep(ServedCall& call, const carrier::Message& message) const;
  // Returns an error to be sent instead of `answer`. If `answer` gives references, the caller gives
  // the call up when it gets the error, so that they are taken back.
  carrier::Message ErrorInstead(const KeptAnswer& answer, const absl::Status& why) const;
  // Sends `message`, the message of `answer`. If the carrier does not take it, sends an error
  // instead.
  void SendReply(LinkId link, const std::shared_ptr<KeptAnswer>& answer, carrier::Message message)
      PSD_EXCLUDES(mutex_);

  // ---- Functions of methods.
  // Returns the method of that name, or null.
  const Method* Find(const std::string& name) const;
  void Dispatch(const std::shared_ptr<ServedCall>& call, const Method& method);
  void Submit(const std::shared_ptr<ServedCall>& call, const Method& method);
  void Run(const std::shared_ptr<ServedCall>& call, const Method& method) PSD_EXCLUDES(mutex_);
  absl::Status UnknownMethod(const std::string& name) const;

  void BeginDraining(bool answers_waiting) PSD_EXCLUDES(mutex_);
  // Waits until `done` holds or `limit` has passed. Only the progress of draining can make `done`
  // true.
  void Await(absl::Duration limit, absl::FunctionRef<bool(absl::Time now)> done)
      PSD_EXCLUDES(mutex_);
  void NoteProgress() PSD_REQUIRES(mutex_);

  const AgentOptions options_;
  Admission admission_;
  Access access_;
  // Does not change after the first event.
  absl::flat_hash_map<std::string, Method> methods_;
  std::vector<std::function<void(const PeerInfo&, uint64_t)>> on_session_ended_;
  std::vector<std::function<void(const PeerInfo&, uint64_t)>> on_goodbye_;
  std::vector<std::function<void(const PeerInfo&, uint64_t, const absl::Status&)>> on_session_lost_;
  std::vector<std::function<void()>> on_draining_;

  mutable Mutex mutex_;  // before: Clock
  CondVar progress_;     // notified while draining, when Idle or Settled holds
  WorkerSessions sessions_ PSD_GUARDED_BY(mutex_);
  absl::flat_hash_map<LinkId, LinkPtr> links_ PSD_GUARDED_BY(mutex_);  // shared with the carrier
  // The handlers of the two ends of the loopback, whose links refer to them weakly.
  std::vector<std::shared_ptr<carrier::LinkHandler>> loopback_ PSD_GUARDED_BY(mutex_);
  LinkId next_link_ PSD_GUARDED_BY(mutex_) = 1;
  absl::Time armed_ PSD_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // when the latest timer fires
  bool draining_ PSD_GUARDED_BY(mutex_) = false;
  bool shutting_down_ PSD_GUARDED_BY(mutex_) = false;
  bool stopped_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace psd::rpc
