#include "core/rpc/registrar/registrar_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/buffer.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/rpc/message_io.h"
#include "proto/psd/v1/registrar.pb.h"

namespace psd::rpc {
namespace {

constexpr absl::Duration kFirstDelay = absl::Milliseconds(100);
constexpr absl::Duration kMostDelay = absl::Seconds(2);
constexpr int kSayEvery = 10;
constexpr absl::Duration kAnswerTime = absl::Seconds(10);

v1::WorkerRole ToWire(WorkerRole role) {
  return role == WorkerRole::kOwner ? v1::WORKER_ROLE_OWNER : v1::WORKER_ROLE_TRAINER;
}

absl::StatusOr<World> DecodeWorld(const rpc::Payload& payload) {
  v1::RegistrarWorldReply reply;
  Buffer bytes;
  if (payload.buffers.size() == 1) {
    PSD_RETURN_IF_ERROR(rpc::CheckParsable(payload.buffers[0].size(), "registrar.world"));
    PSD_ASSIGN_OR_RETURN(bytes, StableBytes(payload.buffers[0]));
  }
  if (!reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return absl::InternalError("registrar.world: the answer cannot be read");
  const int size = reply.names_size();
  if (reply.incarnations_size() != size || reply.ranks_size() != size ||
      reply.roles_size() != size || reply.addresses_size() != size) {
    return absl::InternalError("registrar.world: columns of different lengths");
  }
  World world;
  world.group_size = reply.group_size();
  world.absent_owners.assign(reply.absent_owners().begin(), reply.absent_owners().end());
  for (int i = 0; i < size; ++i) {
    const bool owner = reply.roles(i) == v1::WORKER_ROLE_OWNER;
    world.members.push_back({reply.names(i), reply.incarnations(i), reply.ranks(i),
                             owner ? WorkerRole::kOwner : WorkerRole::kTrainer,
                             reply.addresses(i)});
  }
  return world;
}

absl::StatusOr<std::map<std::string, rpc::Payload>> DecodeGathered(
    const absl::StatusOr<rpc::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  PSD_ASSIGN_OR_RETURN(auto message, ParseMessage<v1::RegistrarBarrierReply>(reply->payload.header,
                                                                             "registrar.barrier"));
  const std::vector<Buffer>& buffers = reply->payload.buffers;
  if (message.buffers_size() != message.names_size())
    return absl::InternalError("all-gather: columns of different lengths");
  std::map<std::string, rpc::Payload> gathered;
  size_t next = 0;
  for (int i = 0; i < message.names_size(); ++i) {
    const size_t given = message.buffers(i);
    if (given == 0 || given > buffers.size() - next)
      return absl::InternalError("all-gather: other buffers than it says");
    rpc::Payload& payload = gathered[message.names(i)];
    payload.header = std::string(buffers[next].view());
    payload.buffers.assign(buffers.begin() + static_cast<ptrdiff_t>(next + 1),
                           buffers.begin() + static_cast<ptrdiff_t>(next + given));
    next += given;
  }
  return gathered;
}

}  // namespace

class RegistrarClient::State : public std::enable_shared_from_this<State> {
 public:
  State(rpc::RpcAgent& agent, TimerQueue& timers, Logger& logger)
      : agent_(agent), timers_(timers), logger_(logger) {}

  Future<Membership> Join(const JoinOptions& options, const rpc::CallOptions& call)
      PSD_EXCLUDES(mutex_);
  void KeepJoined(const JoinOptions& options) PSD_EXCLUDES(mutex_);
  void SessionLost(const rpc::PeerInfo& peer, uint64_t epoch, const absl::Status& reason)
      PSD_EXCLUDES(mutex_);
  Future<rpc::Reply> Meet(v1::RegistrarBarrierRequest request, std::vector<Buffer> buffers,
                          rpc::CallOptions call) PSD_EXCLUDES(mutex_);
  void Stop() PSD_EXCLUDES(mutex_);

  std::string registrar() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return options_.registrar;
  }
  Membership membership() const PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return membership_;
  }

 private:
  // A session of this worker on one incarnation of the registrar.
  struct Session {
    Incarnation registrar = 0;
    uint64_t epoch = 0;
    friend bool operator==(const Session& a, const Session& b) {
      return a.registrar == b.registrar && a.epoch == b.epoch;
    }
  };
  void TryAgain() PSD_EXCLUDES(mutex_);
  void TryLater() PSD_EXCLUDES(mutex_);
  void JoinFailed(const absl::Status& status) PSD_EXCLUDES(mutex_);
  void Joined(const Membership& membership, const Session& session) PSD_EXCLUDES(mutex_);
  // Whether the session in which this worker joined has been lost.
  bool JoinedInVain() const PSD_REQUIRES(mutex_) { return wanted_ && joined_in_ == lost_; }
  void TryEnded() PSD_EXCLUDES(mutex_);

  rpc::RpcAgent& agent_;
  TimerQueue& timers_;
  Logger& logger_;
  mutable Mutex mutex_;  // leaf
  JoinOptions options_ PSD_GUARDED_BY(mutex_);
  Membership membership_ PSD_GUARDED_BY(mutex_);
  Session joined_in_ PSD_GUARDED_BY(mutex_);  // the latest in which this worker joined
  Session lost_ PSD_GUARDED_BY(mutex_);       // the latest on the registrar that was lost
  bool stopped_ PSD_GUARDED_BY(mutex_) = false;
  bool wanted_ PSD_GUARDED_BY(mutex_) = false;  // joins again when lost
  bool trying_ PSD_GUARDED_BY(mutex_) = false;  // a call or a timer is under way
  absl::Duration delay_ PSD_GUARDED_BY(mutex_) = kFirstDelay;
  // The code of the last failed attempt. Of further failures with the same code, every kSayEvery-th
  // is logged.
  absl::StatusCode last_failure_ PSD_GUARDED_BY(mutex_) = absl::StatusCode::kOk;
  int failures_ PSD_GUARDED_BY(mutex_) = 0;  // the number of failures in a row with that code
};

Future<Membership> RegistrarClient::State::Join(const JoinOptions& options,
                                                const rpc::CallOptions& call) {
  v1::RegistrarJoinRequest request;
  {
    MutexLock lock(mutex_);
    if (stopped_) {
      return Future<Membership>::Ready(
          absl::FailedPreconditionError("registrar: this worker is shutting down"));
    }
    options_ = options;
    if (joined_in_.epoch != 0) {
      request.set_wanted_rank(membership_.rank);
    } else if (options.wanted_rank.has_value()) {
      request.set_wanted_rank(*options.wanted_rank);
    }
  }
  request.set_role(ToWire(options.role));
  request.set_group_size(options.group_size);
  request.set_address(options.address);
  return agent_.StartCall(options.registrar, PlainRequest("registrar.join", request), call)
      .reply()
      .Then([self = shared_from_this()](
                const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Membership> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto message, ParseMessage<v1::RegistrarJoinReply>(
                                               reply->payload.header, "registrar.join"));
        const Membership membership{message.rank(), message.world_size()};
        self->Joined(membership, {reply->callee.incarnation, reply->epoch});
        return membership;
      });
}

void RegistrarClient::State::Joined(const Membership& membership, const Session& session) {
  std::string registrar;
  bool try_again = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    membership_ = membership;
    joined_in_ = session;
    wanted_ = true;
    delay_ = kFirstDelay;
    registrar = options_.registrar;
    // The notice of the loss may have come before this answer. An attempt that is under way checks
    // this itself.
    try_again = JoinedInVain() && !std::exchange(trying_, true);
  }
  logger_.Log(
      LogLevel::kInfo, "registrar_joined", absl::StrCat("joined through ", registrar),
      {{"registrar", registrar}, {"rank", membership.rank}, {"world_size", membership.world_size}});
  if (try_again) TryLater();
}

void RegistrarClient::State::TryEnded() {
  {
    MutexLock lock(mutex_);
    last_failure_ = absl::StatusCode::kOk;
    trying_ = JoinedInVain();
    if (!trying_) return;
  }
  TryLater();
}

void RegistrarClient::State::KeepJoined(const JoinOptions& options) {
  {
    MutexLock lock(mutex_);
    options_ = options;
    wanted_ = true;
    if (trying_ || stopped_) return;
    trying_ = true;
  }
  TryAgain();
}

void RegistrarClient::State::SessionLost(const rpc::PeerInfo& peer, uint64_t epoch,
                                         const absl::Status& reason) {
  {
    MutexLock lock(mutex_);
    if (stopped_ || peer.name != options_.registrar) return;
    lost_ = {peer.incarnation, epoch};
    // A late notice about a session before the one in which this worker joined changes nothing.
    if (trying_ || !JoinedInVain()) return;
    trying_ = true;
  }
  logger_.Log(LogLevel::kWarning, "registrar_lost",
              absl::StrCat("the session with ", peer.name, " is gone; joining again"),
              {{"registrar", peer.name}, {"reason", reason.ToString()}});
  TryLater();
}

void RegistrarClient::State::TryAgain() {
  JoinOptions options;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    options = options_;
  }
  rpc::CallOptions call;
  call.timeout = absl::Seconds(10);
  Join(options, call)
      .OnReady([self = shared_from_this()](const absl::StatusOr<Membership>& joined) {
        if (!joined.ok()) return self->JoinFailed(joined.status());
        self->TryEnded();
      });
}

void RegistrarClient::State::JoinFailed(const absl::Status& status) {
  std::string registrar;
  bool news = false;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    registrar = options_.registrar;
    news = std::exchange(last_failure_, status.code()) != status.code();
    failures_ = news ? 1 : failures_ + 1;
    news |= failures_ % kSayEvery == 0;
  }
  if (news) {
    logger_.Log(LogLevel::kWarning, "registrar_join_failed",
                absl::StrCat("could not join through ", registrar, "; trying again"),
                {{"registrar", registrar}, {"error", status.ToString()}});
  }
  TryLater();
}

void RegistrarClient::State::TryLater() {
  absl::Duration delay;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    delay = delay_;
    delay_ = std::min(2 * delay_, kMostDelay);
  }
  timers_.RunAfter(delay, [self = shared_from_this()] { self->TryAgain(); });
}

// The registrar gets a shorter timeout than the call, so that its answer, which names the missing
// members, still arrives.
Future<rpc::Reply> RegistrarClient::State::Meet(v1::RegistrarBarrierRequest request,
                                                std::vector<Buffer> buffers,
                                                rpc::CallOptions call) {
  const std::string asked = registrar();
  if (asked.empty()) {
    return Future<rpc::Reply>::Ready(absl::FailedPreconditionError("barrier: join the job first"));
  }
  if (call.timeout > absl::ZeroDuration()) {
    request.set_timeout_ms(std::max<int64_t>(absl::ToInt64Milliseconds(call.timeout), 1));
    call.timeout += kAnswerTime;
  }
  rpc::Request message = PlainRequest("registrar.barrier", request);
  message.payload.buffers = std::move(buffers);
  return agent_.StartCall(asked, std::move(message), call).reply();
}

void RegistrarClient::State::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
}

RegistrarClient::RegistrarClient(rpc::RpcAgent& agent, TimerQueue& timers, Logger& logger)
    : state_(std::make_shared<State>(agent, timers, logger)) {
  agent.OnSessionLost(
      [state = state_](const rpc::PeerInfo& peer, uint64_t epoch, const absl::Status& reason) {
        state->SessionLost(peer, epoch, reason);
      });
}

RegistrarClient::~RegistrarClient() {
  Stop();
}

Future<Membership> RegistrarClient::Join(const JoinOptions& options, const rpc::CallOptions& call) {
  return state_->Join(options, call);
}

void RegistrarClient::KeepJoined(const JoinOptions& options) {
  state_->KeepJoined(options);
}

Membership RegistrarClient::membership() const {
  return state_->membership();
}

Future<World> AskWorld(rpc::RpcAgent& agent, const std::string& registrar,
                       const rpc::CallOptions& call) {
  return agent
      .StartCall(registrar, PlainRequest("registrar.world", v1::RegistrarWorldRequest()), call)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<World> {
        if (!reply.ok()) return reply.status();
        return DecodeWorld(reply->payload);
      });
}

Future<Unit> RegistrarClient::Barrier(const std::string& name,
                                      const std::vector<std::string>& members,
                                      const rpc::CallOptions& call) {
  v1::RegistrarBarrierRequest request;
  request.set_name(name);
  *request.mutable_members() = {members.begin(), members.end()};
  return state_->Meet(std::move(request), {}, call)
      .Then([](const absl::StatusOr<rpc::Reply>& reply) { return reply.status(); });
}

Future<std::map<std::string, rpc::Payload>> RegistrarClient::AllGather(
    const std::string& name, const rpc::Payload& values, const std::vector<std::string>& members,
    const rpc::CallOptions& call) {
  v1::RegistrarBarrierRequest request;
  request.set_name(name);
  request.set_gather(true);
  request.set_values(values.header);
  *request.mutable_members() = {members.begin(), members.end()};
  return state_->Meet(std::move(request), values.buffers, call)
      .Then([](const absl::StatusOr<rpc::Reply>& reply) { return DecodeGathered(reply); });
}

void RegistrarClient::Stop() {
  state_->Stop();
}

}  // namespace psd::rpc
