#include "tests/core/fake_rpc.h"

#include "absl/strings/str_cat.h"
#include "core/rpc/header.h"

namespace psd::testing {
namespace {

class FakeCall : public rpc::ServerCall {
 public:
  FakeCall(rpc::PeerInfo caller, uint64_t epoch, rpc::Request request,
           std::function<void(absl::StatusOr<rpc::Payload>, std::vector<rpc::Attachment>)> reply)
      : caller_(std::move(caller)),
        epoch_(epoch),
        request_(std::move(request)),
        reply_(std::move(reply)) {}
  ~FakeCall() override { Reply(absl::InternalError("destroyed without an answer"), {}); }

  const rpc::PeerInfo& caller() const override { return caller_; }
  uint64_t session_epoch() const override { return epoch_; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  const std::string& method() const override { return request_.method; }
  rpc::Payload& payload() override { return request_.payload; }
  const std::string* attachment(uint32_t tag) const override {
    return rpc::FindAttachment(request_.attachments, tag);
  }
  absl::Status Charge(size_t) override { return absl::OkStatus(); }
  void ForgetMessage() override { request_.payload = {}; }
  bool cancelled() const override { return false; }
  void OnCancel(Task) override {}
  bool BeginApply() override { return true; }
  void OnAnswerDropped(Task) override {}
  void Reply(absl::StatusOr<rpc::Payload> result,
             std::vector<rpc::Attachment> attachments) override {
    {
      MutexLock lock(mutex_);
      if (replied_) return;
      replied_ = true;
    }
    reply_(std::move(result), std::move(attachments));
  }

 private:
  const rpc::PeerInfo caller_;
  const uint64_t epoch_;
  rpc::Request request_;
  std::function<void(absl::StatusOr<rpc::Payload>, std::vector<rpc::Attachment>)> reply_;
  Mutex mutex_;  // leaf
  bool replied_ PSD_GUARDED_BY(mutex_) = false;
};

}  // namespace

bool FakeNetwork::RunOne() {
  Step step;
  {
    MutexLock lock(mutex_);
    if (steps_.empty()) return false;
    size_t index = seeded_ ? random_() % steps_.size() : 0;
    step = std::move(steps_[index]);
    steps_.erase(steps_.begin() + static_cast<ptrdiff_t>(index));
    if (Lost(step.method)) {
      steps_.push_back(std::move(step));
      return true;
    }
  }
  step.task();
  return true;
}

bool FakeNetwork::Lost(const std::string& method) {
  auto planned = to_lose_.find(method);
  const bool lost = planned != to_lose_.end() && planned->second > 0
                        ? planned->second-- > 0
                        : std::uniform_real_distribution<double>()(random_) < loss_;
  if (lost) ++lost_;
  return lost;
}

void FakeNetwork::Lose(const std::string& method, int times) {
  MutexLock lock(mutex_);
  to_lose_[method] = times;
}

int FakeNetwork::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

void FakeNetwork::Push(Task step, const std::string& method) {
  MutexLock lock(mutex_);
  steps_.push_back({method, std::move(step)});
}

int FakeNetwork::Count(const std::string& method) const {
  MutexLock lock(mutex_);
  auto it = counts_.find(method);
  return it == counts_.end() ? 0 : it->second;
}

void FakeNetwork::EndSessionsOf(const std::string& name, bool goodbye) {
  FakeAgent* gone = agents_.at(name);
  const uint64_t epoch = gone->epoch_++;
  for (auto& [peer, agent] : agents_) {
    if (agent == gone) continue;
    if (goodbye) {
      for (auto& callback : agent->goodbye_) callback(gone->self_, epoch);
    }
    for (auto& callback : agent->session_ended_) callback(gone->self_, epoch);
    for (auto& callback : gone->session_lost_) {
      callback(agent->self_, epoch,
               absl::AbortedError(absl::StrCat("the session on ", peer, " ended")));
    }
  }
}

FakeAgent::FakeAgent(FakeNetwork& network, rpc::PeerInfo self)
    : network_(network), self_(std::move(self)) {
  network_.agents_[self_.name] = this;
}

FakeAgent::~FakeAgent() {
  network_.agents_.erase(self_.name);
}

Future<rpc::PeerInfo> FakeAgent::Connect(const std::string& name, const rpc::CallOptions&) {
  auto it = network_.agents_.find(name);
  if (it == network_.agents_.end()) {
    return Future<rpc::PeerInfo>::Ready(absl::NotFoundError(name));
  }
  return Future<rpc::PeerInfo>::Ready(it->second->self_);
}

rpc::SessionOnPeer FakeAgent::SessionOn(const std::string& peer) const {
  const auto found = network_.agents_.find(peer);
  if (found == network_.agents_.end()) return {};
  return {found->second->self_.incarnation, epoch_};
}

rpc::Call FakeAgent::StartCall(const std::string& peer, rpc::Request request,
                               const rpc::CallOptions&) {
  Promise<rpc::Reply> answer;
  Future<rpc::Reply> reply = answer.future();
  {
    MutexLock lock(network_.mutex_);
    ++network_.counts_[request.method];
  }
  if (request.only_epoch != 0 && request.only_epoch != epoch_) {
    answer.Set(absl::AbortedError("the call was for a session that has ended"));
    return rpc::Call(reply, nullptr);
  }
  const std::string method = request.method;
  network_.Push(
      [&network = network_, caller = self_, epoch = epoch_, peer, request = std::move(request),
       answer]() mutable {
        if (network.filter_) {
          absl::Status status = network.filter_(caller.name, peer, request);
          if (!status.ok()) return static_cast<void>(answer.Set(status));
        }
        auto it = network.agents_.find(peer);
        if (it == network.agents_.end()) {
          return static_cast<void>(answer.Set(absl::UnavailableError(absl::StrCat("no ", peer))));
        }
        it->second->Serve(caller, epoch, std::move(request), answer);
      },
      method);
  return rpc::Call(reply, [answer] { answer.Set(absl::CancelledError("cancelled")); });
}

void FakeAgent::Serve(const rpc::PeerInfo& caller, uint64_t epoch, rpc::Request request,
                      Promise<rpc::Reply> answer) {
  if (request.only_incarnation != 0 && request.only_incarnation != self_.incarnation) {
    return static_cast<void>(answer.Set(absl::AbortedError("another incarnation")));
  }
  auto method = methods_.find(request.method);
  if (method == methods_.end()) {
    return static_cast<void>(answer.Set(absl::NotFoundError(request.method)));
  }
  auto reply = [&network = network_, self = self_, epoch, answer](
                   absl::StatusOr<rpc::Payload> result, std::vector<rpc::Attachment> attachments) {
    network.Push([self, epoch, answer, result = std::move(result),
                  attachments = std::move(attachments)]() mutable {
      if (!result.ok()) return static_cast<void>(answer.Set(result.status()));
      answer.Set(rpc::Reply{*std::move(result), std::move(attachments), self, epoch});
    });
  };
  method->second.handler(std::make_shared<FakeCall>(caller, epoch, std::move(request), reply));
}

}  // namespace psd::testing
