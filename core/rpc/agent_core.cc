#include "core/rpc/agent_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/memory_scope.h"
#include "core/base/small_charges.h"
#include "core/base/status.h"
#include "core/rpc/header_codec.h"
#include "core/rpc/link_handler.h"

namespace psd::rpc {
namespace {

WorkerSessions::Options SessionsOf(const AgentOptions& options) {
  return {options.self, options.session, options.max_sessions, options.self.incarnation};
}

// Returns the deadline on this worker's clock, from the time that was left when the request was
// sent.
absl::Time DeadlineOf(const Header& header, absl::Time now) {
  if (header.timeout_us == 0) return absl::InfiniteFuture();
  return now + absl::Microseconds(
                   std::min<uint64_t>(header.timeout_us, std::numeric_limits<int64_t>::max()));
}

size_t BytesOf(const Header& header, const std::vector<Buffer>& buffers) {
  size_t total = header.payload.size();
  for (const Attachment& attachment : header.attachments) total += attachment.bytes.size();
  for (const Buffer& buffer : buffers) total += buffer.size();
  return total;
}

// Returns the bytes of a message that are charged nowhere else. Buffers of values and results are
// charged where they came from.
size_t UnknownBytes(const carrier::Message& message) {
  size_t bytes = message.header.size();
  for (const Buffer& buffer : message.buffers)
    if (buffer.size() < kMovableBytes) bytes += buffer.size();
  return bytes;
}

}  // namespace

AgentCore::AgentCore(AgentOptions options)
    : options_(std::move(options)),
      admission_(options_.self.name),
      access_(options_.self),
      sessions_(SessionsOf(options_)) {}

void AgentCore::RegisterMethod(Method method) {
  std::string name = method.name;
  PSD_CHECK(!name.empty() && name.size() <= kMaxMethodBytes, "a method needs a name that fits");
  bool added = methods_.emplace(name, std::move(method)).second;
  PSD_CHECK(added, absl::StrCat("method ", name, " is registered twice"));
}

std::vector<std::string> AgentCore::Methods() const {
  std::vector<std::string> names;
  for (const auto& [name, method] : methods_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

void AgentCore::OnSessionEnded(std::function<void(const PeerInfo&, uint64_t)> callback) {
  on_session_ended_.push_back(std::move(callback));
}

void AgentCore::OnGoodbye(std::function<void(const PeerInfo&, uint64_t)> callback) {
  on_goodbye_.push_back(std::move(callback));
}

void AgentCore::OnSessionLost(
    std::function<void(const PeerInfo&, uint64_t, const absl::Status&)> callback) {
  on_session_lost_.push_back(std::move(callback));
}

void AgentCore::OnDraining(std::function<void()> callback) {
  on_draining_.push_back(std::move(callback));
}

MethodKind AgentCore::KindOf(const Request& request) const {
  if (request.kind.has_value()) return *request.kind;
  const Method* method = Find(request.method);
  return method == nullptr ? MethodKind::kMutation : method->kind;
}

// ---------------------------------------------------------------- driving the machines

template <typename Input>
void AgentCore::Drive(Input input) {
  Actions actions;
  absl::Time wake;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    input(Now(), actions);
    wake = WakeIfEarlier();
    NoteProgress();
  }
  ArmTimer(wake);
  Perform(std::move(actions));
}

// Returns the time for a new timer, or InfiniteFuture if the armed one fires early enough.
absl::Time AgentCore::WakeIfEarlier() {
  absl::Time wake = sessions_.NextWake();
  if (wake >= armed_) return absl::InfiniteFuture();
  armed_ = wake;
  return wake;
}

void AgentCore::ArmTimer(absl::Time when) {
  if (when == absl::InfiniteFuture()) return;
  options_.timers->RunAt(when, [weak = weak_from_this(), when] {
    if (auto self = weak.lock()) self->OnTimer(when);
  });
}

void AgentCore::OnTimer(absl::Time when) {
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    if (when != armed_) return;  // an earlier timer has replaced this one
    armed_ = absl::InfiniteFuture();
    sessions_.Tick(now, actions);
  });
}

void AgentCore::BeginDraining() {
  BeginDraining(/*answers_waiting=*/true);
}

// Calls that wait for others are answered before peers are told. A peer that is told of the stop
// may end its session at once, and the waiting calls must not take that end for a death.
void AgentCore::BeginDraining(bool answers_waiting) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(draining_, true)) return;
    admission_.BeginDraining();
  }
  if (answers_waiting) {
    for (auto callback = on_draining_.rbegin(); callback != on_draining_.rend(); ++callback)
      (*callback)();
  }
  Drive([&](absl::Time now, Actions& actions)
            PSD_NO_THREAD_SAFETY_ANALYSIS { sessions_.BeginLeaving(now, actions); });
}

void AgentCore::NoteProgress() {
  if (draining_ && (sessions_.Idle() || sessions_.Settled(Now()))) progress_.NotifyAll();
}

// ---------------------------------------------------------------- calls of this worker

absl::StatusOr<std::string> AgentCore::Start(const std::string& address) {
  AddPeer(options_.self.name, "loopback");
  Drive([&](absl::Time now, Actions& actions)
            PSD_NO_THREAD_SAFETY_ANALYSIS { sessions_.Tick(now, actions); });
  if (address.empty()) return std::string();
  return options_.carrier->Listen(
      address, [weak = weak_from_this()](LinkPtr link) -> std::shared_ptr<carrier::LinkHandler> {
        auto self = weak.lock();
        return self == nullptr ? nullptr : self->Accept(std::move(link));
      });
}

void AgentCore::AddPeer(const std::string& name, const std::string& address) {
  MutexLock lock(mutex_);
  sessions_.AddPeer(name, address);
}

void AgentCore::StartCall(const std::shared_ptr<ClientCall>& call, CallSpec spec,
                          absl::Duration timeout) {
  PeerInfo callee{call->peer(), 0};
  if (timeout < absl::ZeroDuration()) {
    return call->Complete(
        callee, absl::InvalidArgumentError(absl::StrCat("timeout ", absl::FormatDuration(timeout),
                                                        " is negative; 0 means no timeout")));
  }
  Actions actions;
  absl::Time wake;
  {
    MutexLock lock(mutex_);
    if (stopped_) {
      wake = absl::InfiniteFuture();
      actions.push_back(CompleteAction{
          call, absl::CancelledError(absl::StrCat("worker ", options_.self.name, " has shut down")),
          callee});
    } else {
      absl::Time now = Now();
      if (timeout > absl::ZeroDuration()) spec.deadline = now + timeout;
      spec.body = call;
      call->id = sessions_.StartCall(now, call->peer(), std::move(spec), actions);
      wake = WakeIfEarlier();
    }
  }
  ArmTimer(wake);
  Perform(std::move(actions));
}

void AgentCore::CancelCall(const ClientCall& call) {
  Drive([&](absl::Time, Actions& actions)
            PSD_NO_THREAD_SAFETY_ANALYSIS { sessions_.CancelCall(call.peer(), call.id, actions); });
}

// ---------------------------------------------------------------- links

LinkId AgentCore::AddLink(LinkPtr link) {
  LinkId id = next_link_++;
  links_.emplace(id, std::move(link));
  return id;
}

std::shared_ptr<carrier::LinkHandler> AgentCore::Accept(LinkPtr link) {
  LinkId id = 0;
  std::string origin = link->Description();
  Drive([&](absl::Time now, Actions&) PSD_NO_THREAD_SAFETY_ANALYSIS {
    id = AddLink(link);
    sessions_.OnAccepted(now, id, std::move(origin));
  });
  if (id == 0) return nullptr;
  auto handler = std::make_shared<LinkHandler>(weak_from_this());
  handler->Bind(id);
  return handler;
}

void AgentCore::OnDialed(const std::string& peer, LinkPtr link, LinkHandler& handler) {
  LinkId id = 0;
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    id = AddLink(link);
    handler.Bind(id);
    sessions_.OnDialed(now, peer, id, actions);
  });
  if (id == 0) return link->Close();  // the agent has shut down meanwhile
  LogOpened(peer, *link);
  if (handler.closed()) OnClosed(id, absl::UnavailableError("ended as soon as it came"));
}

void AgentCore::OnDialFailed(const std::string& peer, bool refused, const absl::Status& status) {
  options_.logger->Log(LogLevel::kDebug, "dial_failed", status.message(), {{"peer", peer}});
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    sessions_.OnDialFailed(now, peer, refused, status, actions);
  });
}

void AgentCore::OnSendRefused(const std::string& peer, CallId id, const absl::Status& status) {
  Drive([&](absl::Time, Actions& actions)
            PSD_NO_THREAD_SAFETY_ANALYSIS { sessions_.OnSendRefused(peer, id, status, actions); });
}

void AgentCore::OnClosed(LinkId link, const absl::Status& reason) {
  PeerInfo peer;
  LinkPtr closed;  // destroyed after the lock
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    auto found = links_.find(link);
    if (found == links_.end()) return;
    closed = std::move(found->second);
    links_.erase(found);
    peer = sessions_.PeerOf(link);
    sessions_.OnLinkClosed(now, link, actions);
  });
  const bool stalled = absl::IsDeadlineExceeded(reason);
  options_.logger->Log(stalled ? LogLevel::kWarning : LogLevel::kDebug,
                       stalled ? "peer_stalled" : "link_closed", reason.message(),
                       {{"link", link}, {"peer", peer.name}});
}

void AgentCore::EndLink(LinkId link, const absl::Status& reason) {
  options_.logger->Log(LogLevel::kWarning, "link_ended", reason.message(), {{"link", link}});
  if (LinkPtr open = FindLink(link)) open->Close();
}

void AgentCore::OnMessage(LinkId link, carrier::Message message) {
  MemoryScope memory(options_.memory.get());
  BeginSmallCharges();
  absl::StatusOr<Header> header = DecodeHeader(message.header);
  Take(link, std::move(header), std::move(message), absl::OkStatus());
}

void AgentCore::OnRefused(LinkId link, std::string header, const absl::Status& why) {
  const bool whole = header.size() < carrier::kKeptHeaderBytes;
  Take(link, whole ? DecodeHeader(header) : DecodeBeginning(header), {}, why);
}

void AgentCore::Take(LinkId link, absl::StatusOr<Header> header, carrier::Message message,
                     const absl::Status& refused) {
  if (!header.ok()) return EndLink(link, header.status());
  switch (header->kind) {
    case MessageKind::kRequest:
      return OnRequest(link, *std::move(header), std::move(message), refused);
    case MessageKind::kReply:
      // An error needs no buffers.
      if (!refused.ok() && header->status.ok()) {
        return Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
          sessions_.OnAnswerWithoutRoom(
              now, link, {header->call_id, header->epoch, header->attempt}, refused, actions);
        });
      }
      return OnReply(link, *std::move(header), std::move(message.buffers));
    default:  // a control message has only a header, so it is never refused
      return OnControl(link, *header);
  }
}

void AgentCore::OnControl(LinkId link, const Header& header) {
  LinkPtr greeted;  // a link on which a peer has said its first hello
  PeerInfo peer;
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    const bool is_first =
        header.kind == MessageKind::kHello && sessions_.PeerOf(link).incarnation == 0;
    sessions_.OnControl(now, link, header, actions);
    if (is_first) peer = sessions_.PeerOf(link);
    const auto found = links_.find(link);
    if (peer.incarnation != 0 && found != links_.end()) greeted = found->second;
  });
  if (greeted != nullptr && peer.name != options_.self.name) LogOpened(peer.name, *greeted);
}

void AgentCore::LogOpened(const std::string& peer, const carrier::Link& link) {
  const std::string how = link.Description();
  const std::string why_not_shared = link.WhyNotShared();
  options_.logger->Log(LogLevel::kInfo, "link_opened",
                       absl::StrCat(peer, " is connected over ", how,
                                    why_not_shared.empty() ? "" : ": ", why_not_shared),
                       {{"peer", peer}, {"link", how}, {"why_not_shared", why_not_shared}});
}

void AgentCore::OnRequest(LinkId link, Header header, carrier::Message message,
                          const absl::Status& refused) {
  absl::Time deadline = DeadlineOf(header, Now());
  const size_t bytes = BytesOf(header, message.buffers);
  auto call = std::make_shared<ServedCall>(shared_from_this(), std::move(header),
                                           std::move(message), deadline);
  const RequestMeta meta = call->TakeMeta();
  const Method* const method = Find(call->method());
  const MethodKind kind = method == nullptr ? MethodKind::kMutation : method->kind;
  bool run = false;
  absl::Status admitted;
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    const CalleeSession* session =
        sessions_.OnRequest(now, link, meta, call->cancel_state(), actions);
    if (session == nullptr) return;
    run = true;
    const PeerInfo& caller = session->caller();
    call->set_caller(caller);
    const bool own = caller.incarnation == options_.self.incarnation;
    admitted = admission_.Admit({own ? Entrance::kSelf : Entrance::kStream, kAnonymous, caller,
                                 session->origin(), call->method(), kind, bytes});
  });
  if (!run) return call->Discard();
  if (!admitted.ok()) return call->Reply(std::move(admitted), {});
  if (!refused.ok()) return call->Reply(Annotate(refused, options_.self.name), {});
  if (method == nullptr) return call->Reply(UnknownMethod(call->method()), {});
  Dispatch(call, *method);
}

void AgentCore::OnReply(LinkId link, Header header, std::vector<Buffer> buffers) {
  std::shared_ptr<Opaque> body;
  PeerInfo callee;
  size_t bytes = BytesOf(header, buffers);
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    body = sessions_.OnAnswer(now, link, {header.call_id, header.epoch, header.attempt}, bytes,
                              actions);
    if (body != nullptr) callee = sessions_.PeerOf(link);
  });
  if (body == nullptr) return;
  static_cast<ClientCall&>(*body).Complete(callee, std::move(header), std::move(buffers));
}

// ---------------------------------------------------------------- from served calls

bool AgentCore::BeginApply(const ServedCall& call) {
  MutexLock lock(mutex_);
  return !stopped_ && sessions_.BeginApply(call.session_epoch(), call.id());
}

void AgentCore::OnAnswerRefused(const std::shared_ptr<KeptAnswer>& answer) {
  Drive([&](absl::Time, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    sessions_.OnAnswerRefused(answer->call.epoch, answer->call.id, answer, actions);
  });
}

// Returns what is remembered of an answer, which is nothing for a read. If there is no memory to
// remember it, it is sent once, and a caller that asks again gets an error.
std::shared_ptr<KeptAnswer> AgentCore::Keep(ServedCall& call,
                                            const carrier::Message& message) const {
  const AnsweredCall answered{call.session_epoch(), call.id(), call.sequence()};
  if (answered.sequence == 0)
    return std::make_shared<KeptAnswer>(answered, carrier::Message{}, call.TakeOnDropped());
  const size_t bytes = UnknownBytes(message);
  MemoryCharge charge;
  if (bytes > CalleeSession::kCallBytes && options_.memory != nullptr) {
    absl::StatusOr<MemoryCharge> charged = options_.memory->Charge(bytes);
    if (!charged.ok()) {
      KeptAnswer lost(answered, {}, call.TakeOnDropped());
      carrier::Message error =
          ErrorInstead(lost, Annotate(charged.status(), "the answer could not be kept"));
      return std::make_shared<KeptAnswer>(answered, std::move(error), std::move(lost.on_dropped));
    }
    charge = *std::move(charged);
  }
  return std::make_shared<KeptAnswer>(answered, message, call.TakeOnDropped(), std::move(charge));
}

void AgentCore::SendAnswer(ServedCall& call, absl::StatusOr<Payload> result,
                           std::vector<Attachment> attachments) {
  Header header;
  header.kind = MessageKind::kReply;
  header.call_id = call.id();
  header.epoch = call.session_epoch();
  carrier::Message message;
  if (result.ok()) {
    header.attachments = std::move(attachments);
    header.payload = std::move(result->header);
    message.buffers = std::move(result->buffers);
  } else {
    header.status = result.status();
    // An error gives no references, so those that were counted for the answer are taken back.
    for (Task& take_back : call.TakeOnDropped()) take_back();
  }
  size_t bytes = BytesOf(header, message.buffers);
  const bool is_read = call.sequence() == 0;
  // The answer of a read says which attempt it answers, so its header is written later.
  if (!is_read) message.header = EncodeHeader(header);
  const std::shared_ptr<KeptAnswer> answer = Keep(call, message);
  AnswerRoute route;
  Drive([&](absl::Time now, Actions& actions) PSD_NO_THREAD_SAFETY_ANALYSIS {
    route = sessions_.OnReply(now, call.session_epoch(), call.id(), answer, bytes,
                              !answer->on_dropped.empty(), actions);
  });
  if (route.link == 0) return;
  if (is_read) {
    header.attempt = route.attempt;
    message.header = EncodeHeader(header);
  }
  SendReply(route.link, answer, std::move(message));
}

}  // namespace psd::rpc
