#include "tests/attack/raw_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/rpc/header_codec.h"
#include "gtest/gtest.h"

namespace psd::attack {

class RawSession::Handler : public carrier::LinkHandler {
 public:
  void OnMessage(carrier::Message message) override {
    absl::StatusOr<rpc::Header> header = rpc::DecodeHeader(message.header);
    if (!header.ok()) return welcome_.Set(header.status()), void();
    if (header->kind == rpc::MessageKind::kWelcome) return welcome_.Set(*header), void();
    if (header->kind == rpc::MessageKind::kRefused) return welcome_.Set(header->status), void();
    if (header->kind == rpc::MessageKind::kReply) Count(header->status);
  }
  void OnRefused(std::string, absl::Status why) override { Count(why); }
  void OnClosed(absl::Status reason) override {
    welcome_.Set(reason);
    MutexLock lock(mutex_);
    answers_.closed = true;
    changed_.NotifyAll();
  }

  Future<rpc::Header> welcome() const { return welcome_.future(); }
  Answers answers() const {
    MutexLock lock(mutex_);
    return answers_;
  }
  Answers Await(int calls) const {
    MutexLock lock(mutex_);
    while (!answers_.closed && answers_.done + answers_.refused < calls && answers_.other.ok())
      changed_.Wait(mutex_);
    return answers_;
  }

 private:
  void Count(const absl::Status& status) {
    MutexLock lock(mutex_);
    if (status.ok()) ++answers_.done;
    if (absl::IsResourceExhausted(status)) ++answers_.refused;
    if (!status.ok() && !absl::IsResourceExhausted(status)) answers_.other = status;
    changed_.NotifyAll();
  }

  const Promise<rpc::Header> welcome_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  Answers answers_ PSD_GUARDED_BY(mutex_);
};

RawSession::RawSession(carrier::Carrier& network, const std::string& address,
                       const std::string& name)
    : handler_(std::make_shared<Handler>()) {
  const Promise<std::shared_ptr<carrier::Link>> connected;
  network.Connect(address, absl::InfiniteDuration(), handler_,
                  [&](auto link) { connected.Set(std::move(link)); });
  const auto link = connected.future().Wait();
  if (!link.ok()) {
    ADD_FAILURE() << link.status();
    return;
  }
  link_ = *link;
  rpc::Header hello;
  hello.kind = rpc::MessageKind::kHello;
  hello.name = name;
  hello.incarnation = NewIncarnation();
  hello.protocol_version = rpc::kProtocolVersion;
  hello.sequence = 1;
  EXPECT_TRUE(link_->Send({rpc::EncodeHeader(hello), {}}).ok());
  const auto welcome = handler_->welcome().Wait();
  EXPECT_TRUE(welcome.ok() || absl::IsResourceExhausted(welcome.status())) << welcome.status();
  if (!welcome.ok()) return;
  callee_ = welcome->incarnation;
  epoch_ = welcome->epoch;
}

RawSession::~RawSession() {
  if (link_ != nullptr) link_->Close();
}

absl::Status RawSession::Call(bool mutation, rpc::Header call, absl::string_view fields) {
  call.kind = rpc::MessageKind::kRequest;
  call.epoch = epoch_;
  call.callee_incarnation = callee_;
  {
    MutexLock lock(mutex_);
    call.call_id = ++calls_;
    call.sequence = mutation ? ++mutations_ : 0;
  }
  // If both parts set a field, the receiver keeps the value of the second part.
  return link_->Send({absl::StrCat(fields, rpc::EncodeHeader(call)), {}});
}

RawSession::Answers RawSession::answers() const {
  return handler_->answers();
}
RawSession::Answers RawSession::Await(int calls) const {
  return handler_->Await(calls);
}

}  // namespace psd::attack
