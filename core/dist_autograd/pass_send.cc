// Pass: sends gradients to the workers whose tensors they belong to.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/dist_autograd/pass.h"

namespace psd::dist_autograd {

absl::Status Pass::Deliver(const RecvFunction& recv, Tensors gradients) {
  // This is checked here because a GraphWalk may not meet the function: the walk stops once it has
  // met every recv function of its own context.
  if (recv.context() != context_->id()) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat(
            "a tensor that came from ", recv.peer(), " in autograd context ",
            recv.context().ToString(), " was used in context ", context_->id().ToString())),
        "fetch it in this context, or detach it");
  }
  if (std::none_of(gradients.begin(), gradients.end(),
                   [](const Tensor& gradient) { return gradient.defined(); })) {
    gradients.clear();
  }
  auto outgoing = std::make_shared<Outgoing>();
  outgoing->peer = {recv.peer(), recv.message().incarnation};
  GradientInfo& info = outgoing->info;
  info.pass = info_;
  info.message = recv.message();
  {
    MutexLock lock(mutex_);
    if (recv.message().incarnation == host_->self().incarnation) {
      local_.emplace_back(recv.message(), std::move(gradients));
      return absl::OkStatus();
    }
    info.start = start_;
    auto marks = unsent_marks_.find(recv.peer());
    if (marks != unsent_marks_.end()) {
      info.start = StartBy::kListed;
      info.expected = std::move(marks->second);
      unsent_marks_.erase(marks);
    }
    ++outstanding_;
  }
  outgoing->gradients = std::move(gradients);
  PSD_ASSIGN_OR_RETURN(
      outgoing->message,
      host_->messages().Encode(outgoing->peer, outgoing->gradients, recv.takes_pieces()));
  Send(outgoing);
  return absl::OkStatus();
}

void Pass::Send(const OutgoingPtr& outgoing) {
  if (outgoing->message.whole()) outgoing->gradients.clear();
  if (!outgoing->message.lends()) return SendNow(outgoing);
  host_->messages().WhenWritten(outgoing->message.written,
                                [self = shared_from_this(), outgoing](const absl::Status& written) {
                                  self->OnWritten(outgoing, written);
                                });
}

void Pass::OnWritten(const OutgoingPtr& outgoing, const absl::Status& written) {
  bool over = false;
  {
    MutexLock lock(mutex_);
    over = done_;
  }
  if (written.ok() && !over) return SendNow(outgoing);
  host_->messages().Drop(outgoing->peer, outgoing->message);
  if (!written.ok()) Fail(ErrorOn(host_->self().name, written), "");
}

void Pass::SendNow(const OutgoingPtr& outgoing) {
  rpc::Request request;
  request.method = "autograd.gradient";
  request.only_incarnation = outgoing->peer.incarnation;
  request.attachments.push_back({kAutogradTag, EncodeGradientInfo(outgoing->info)});
  for (rpc::Attachment& each : GradientMessages::AttachmentsOf(outgoing->message))
    request.attachments.push_back(std::move(each));
  request.payload = std::move(outgoing->message.payload);
  host_->Send(outgoing->peer.name, std::move(request), info_.timeout)
      .OnReady([self = shared_from_this(), outgoing](const absl::StatusOr<rpc::Reply>& reply) {
        self->OnAnswered(outgoing, reply);
      });
}

void Pass::OnAnswered(const OutgoingPtr& outgoing, const absl::StatusOr<rpc::Reply>& reply) {
  const absl::StatusOr<GradientAnswer> answer =
      reply.ok() ? DecodeGradientAnswer(reply->payload.header) : reply.status();
  const bool whole = outgoing->message.whole();
  const absl::Status refused = answer.ok() ? answer->refused : absl::OkStatus();
  if (!whole)
    host_->messages().OnAnswered(outgoing->peer, outgoing->message, answer.status(), refused);
  if (!answer.ok()) return OnDelivered(outgoing->peer.name, answer.status());
  if (refused.ok()) {
    context_->AddReached(answer->reached);
    return OnDelivered(outgoing->peer.name, absl::OkStatus());
  }
  if (whole) return OnDelivered(outgoing->peer.name, refused);
  // This thread reads the network, and the copies wait for the device. The thread that takes the
  // event has room when the executor has none.
  host_->messages().WhenWritten(outgoing->message.written,
                                [self = shared_from_this(), outgoing](const absl::Status& written) {
                                  if (written.ok()) return self->SendAgain(outgoing);
                                  self->Fail(ErrorOn(self->host_->self().name, written), "");
                                });
}

void Pass::SendAgain(const OutgoingPtr& outgoing) {
  {
    MutexLock lock(mutex_);
    if (done_) return;
  }
  absl::StatusOr<GradientMessage> copies = GradientMessages::EncodeCopies(outgoing->gradients);
  if (!copies.ok()) return Fail(ErrorOn(host_->self().name, copies.status()), "");
  outgoing->message = *std::move(copies);
  Send(outgoing);
}

void Pass::OnDelivered(const std::string& peer, const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    --outstanding_;
  }
  if (!status.ok()) return Fail(ErrorOn(peer, status), "");
  FinishIfDone();
}

}  // namespace psd::dist_autograd
