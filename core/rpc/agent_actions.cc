// AgentCore: performs the actions that the session machines return.

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/rpc/agent_core.h"
#include "core/rpc/header_codec.h"
#include "core/rpc/link_handler.h"
#include "core/rpc/loopback_link.h"

namespace psd::rpc {

void AgentCore::Perform(Actions actions) {
  for (Action& action : actions) {
    std::visit([this](auto& some) { Do(std::move(some)); }, action);
  }
}

void AgentCore::Do(DialAction action) {
  if (action.peer == options_.self.name) return DialSelf();
  auto handler = std::make_shared<LinkHandler>(weak_from_this());
  auto done = [weak = weak_from_this(), handler, peer = action.peer](absl::StatusOr<LinkPtr> link)
                  PSD_NO_THREAD_SAFETY_ANALYSIS {
                    auto self = weak.lock();
                    if (self == nullptr) return;
                    if (!link.ok()) {
                      bool refused = absl::IsUnavailable(link.status()) &&
                                     absl::StrContains(link.status().message(), "refused");
                      return self->OnDialFailed(peer, refused, link.status());
                    }
                    self->OnDialed(peer, *std::move(link), *handler);
                  };
  options_.carrier->Connect(action.address, options_.session.silence, handler, std::move(done));
}

void AgentCore::DialSelf() {
  auto caller_end = std::make_shared<LinkHandler>(weak_from_this());
  auto callee_end = std::make_shared<LinkHandler>(weak_from_this());
  Actions actions;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    LinkId callee = AddLink(std::make_shared<LoopbackLink>(caller_end));
    LinkId caller = AddLink(std::make_shared<LoopbackLink>(callee_end));
    caller_end->Bind(caller);
    callee_end->Bind(callee);
    loopback_ = {caller_end, callee_end};
    absl::Time now = Now();
    sessions_.OnAccepted(now, callee, options_.self.name);
    sessions_.OnDialed(now, options_.self.name, caller, actions);
  }
  Perform(std::move(actions));
}

void AgentCore::Do(CloseLinkAction action) {
  options_.logger->Log(LogLevel::kInfo, "link_given_up", action.reason.message(),
                       {{"link", action.link}});
  if (LinkPtr link = FindLink(action.link)) link->Close();
}

void AgentCore::Do(std::unique_ptr<SendControlAction> action) {
  // The error is ignored: if the link has ended, OnClosed is called.
  Send(action->link, carrier::Message{EncodeHeader(action->header), {}}).IgnoreError();
}

void AgentCore::Do(SendRequestAction action) {
  const auto& call = static_cast<const ClientCall&>(*action.body);
  CallId id = action.meta.call_id;
  const LinkPtr link = FindLink(action.link);
  if (link == nullptr) return;
  call.SetLink(link);
  const absl::Status sent = link->Send(call.Encode(action.meta, Now()));
  // If the link has ended (UNAVAILABLE), the request is sent again over the next link. All other
  // errors are final.
  if (sent.ok() || absl::IsUnavailable(sent)) return;
  OnSendRefused(call.peer(), id, sent);
}

void AgentCore::Do(SendAnswerAction action) {
  const auto answer = std::static_pointer_cast<KeptAnswer>(std::move(action.answer));
  SendReply(action.link, answer, answer->message);
}

void AgentCore::SendReply(LinkId link, const std::shared_ptr<KeptAnswer>& answer,
                          carrier::Message message) {
  absl::Status sent = Send(link, std::move(message));
  if (sent.ok() || absl::IsUnavailable(sent)) return;
  // A caller that waits for the answer gets an error. The answer of a mutation stays remembered,
  // because the caller may have received an earlier copy of it.
  if (answer->call.sequence == 0) OnAnswerRefused(answer);
  Send(link, ErrorInstead(*answer, Annotate(sent, "the answer cannot be sent"))).IgnoreError();
}

carrier::Message AgentCore::ErrorInstead(const KeptAnswer& answer, const absl::Status& why) const {
  const AnsweredCall& call = answer.call;
  Header header;
  header.kind = MessageKind::kReply;
  header.call_id = call.id;
  header.epoch = call.epoch;
  if (call.sequence != 0 && !answer.on_dropped.empty()) header.attempt = 1;
  header.status = WithDetail(
      why, ErrorDetail{options_.self.name, "", "ask for less at a time", call.sequence != 0});
  return {EncodeHeader(header), {}};
}

void AgentCore::Do(CompleteAction action) {
  static_cast<ClientCall&>(*action.body).Complete(action.callee, std::move(action.status));
}

void AgentCore::Do(CancelWorkAction action) {
  static_cast<CancelState&>(*action.work).Cancel();
}

void AgentCore::Do(AnswerDroppedAction action) {
  for (Task& callback : static_cast<KeptAnswer&>(*action.answer).on_dropped) callback();
}

void AgentCore::Do(SessionEndedAction action) {
  options_.logger->Log(LogLevel::kInfo, "session_ended", "released what it held",
                       {{"peer", action.peer.name}, {"epoch", action.epoch}});
  if (action.goodbye) {
    for (const auto& callback : on_goodbye_) callback(action.peer, action.epoch);
  }
  for (const auto& callback : on_session_ended_) callback(action.peer, action.epoch);
}

void AgentCore::Do(SessionLostAction action) {
  options_.logger->Log(LogLevel::kWarning, "session_lost", action.reason.message(),
                       {{"peer", action.peer.name}, {"epoch", action.epoch}});
  for (const auto& callback : on_session_lost_) callback(action.peer, action.epoch, action.reason);
}

AgentCore::LinkPtr AgentCore::FindLink(LinkId link) const {
  MutexLock lock(mutex_);
  auto found = links_.find(link);
  return found == links_.end() ? nullptr : found->second;
}

absl::Status AgentCore::Send(LinkId link, carrier::Message message) {
  LinkPtr open = FindLink(link);
  if (open == nullptr) return absl::UnavailableError("the link has ended");
  return open->Send(std::move(message));
}

}  // namespace psd::rpc
