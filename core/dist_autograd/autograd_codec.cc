#include "core/dist_autograd/autograd_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/worker_name.h"
#include "proto/psd/v1/autograd.pb.h"

namespace psd::dist_autograd {
namespace {

constexpr absl::Duration kMaxTimeout = absl::Hours(24 * 365);

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a damaged autograd message: ", what));
}

template <typename Message>
absl::StatusOr<Message> Parse(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return Damaged(absl::StrCat(bytes.size(), " bytes"));
  return message;
}

template <typename Message>
GlobalId ContextOf(const Message& message) {
  return {message.context_incarnation(), message.context_counter()};
}

template <typename Message>
void SetPass(const PassInfo& pass, Message& out) {
  out.set_context_incarnation(pass.context.incarnation);
  out.set_context_counter(pass.context.counter);
  out.set_pass_incarnation(pass.pass.incarnation);
  out.set_pass_counter(pass.pass.counter);
  out.set_retain_graph(pass.retain_graph);
  out.set_timeout_ms(static_cast<uint64_t>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(std::min(pass.timeout, kMaxTimeout)))));
}

template <typename Message>
absl::StatusOr<PassInfo> GetPass(const Message& in) {
  PassInfo pass;
  pass.context = ContextOf(in);
  pass.pass = {in.pass_incarnation(), in.pass_counter()};
  pass.retain_graph = in.retain_graph();
  const auto longest = static_cast<uint64_t>(absl::ToInt64Milliseconds(kMaxTimeout));
  if (in.timeout_ms() == 0 || in.timeout_ms() > longest) return Damaged("its timeout");
  pass.timeout = absl::Milliseconds(static_cast<int64_t>(in.timeout_ms()));
  return pass;
}

// Writes the error that a message carries into `status`. Errors: INVALID_ARGUMENT.
template <typename Message>
absl::Status ReadError(const Message& in, absl::Status& status) {
  if (in.code() <= 0 || in.code() > static_cast<int32_t>(absl::StatusCode::kUnauthenticated))
    return Damaged("its status code");
  status = absl::Status(static_cast<absl::StatusCode>(in.code()), in.message());
  return absl::OkStatus();
}

v1::GradientStart ToWire(StartBy start) {
  switch (start) {
    case StartBy::kListed:
      return v1::GRADIENT_START_LISTED;
    case StartBy::kElsewhere:
      return v1::GRADIENT_START_ELSEWHERE;
    case StartBy::kMarked:
      return v1::GRADIENT_START_MARKED;
    case StartBy::kAll:
      return v1::GRADIENT_START_ALL;
  }
  return v1::GRADIENT_START_UNSPECIFIED;
}

absl::StatusOr<StartBy> FromWire(v1::GradientStart start) {
  switch (start) {
    case v1::GRADIENT_START_LISTED:
      return StartBy::kListed;
    case v1::GRADIENT_START_ELSEWHERE:
      return StartBy::kElsewhere;
    case v1::GRADIENT_START_MARKED:
      return StartBy::kMarked;
    case v1::GRADIENT_START_ALL:
      return StartBy::kAll;
    default:
      return Damaged("how its pass starts");
  }
}

}  // namespace

std::string EncodeMessageInfo(const MessageInfo& info) {
  v1::AutogradAttachment out;
  out.set_context_incarnation(info.context.incarnation);
  out.set_context_counter(info.context.counter);
  out.set_message_incarnation(info.message.incarnation);
  out.set_message_counter(info.message.counter);
  out.set_requires_grad(info.requires_grad);
  for (GlobalId message : info.upstream) {
    out.add_upstream_incarnations(message.incarnation);
    out.add_upstream_counters(message.counter);
  }
  out.set_takes_pieces(info.takes_pieces);
  return out.SerializeAsString();
}

absl::StatusOr<MessageInfo> DecodeMessageInfo(const std::string& bytes) {
  PSD_ASSIGN_OR_RETURN(auto in, Parse<v1::AutogradAttachment>(bytes));
  MessageInfo info;
  info.context = ContextOf(in);
  info.message = {in.message_incarnation(), in.message_counter()};
  if (info.context.incarnation == 0) return Damaged("its context");
  info.requires_grad = std::move(*in.mutable_requires_grad());
  bool any = false;
  for (char flag : info.requires_grad) {
    if (flag != 0 && flag != 1) return Damaged("a flag that is neither 0 nor 1");
    any |= flag != 0;
  }
  if (any == info.message.IsNone()) return Damaged("its message id");
  if (in.upstream_incarnations_size() != in.upstream_counters_size()) return Damaged("upstream");
  for (int i = 0; i < in.upstream_counters_size(); ++i) {
    info.upstream.push_back({in.upstream_incarnations(i), in.upstream_counters(i)});
  }
  info.takes_pieces = in.takes_pieces();
  return info;
}

std::string EncodeGradientInfo(const GradientInfo& info) {
  v1::GradientHeader out;
  SetPass(info.pass, out);
  out.set_mode(info.pass.mode == BackwardMode::kFast ? v1::BACKWARD_MODE_FAST
                                                     : v1::BACKWARD_MODE_EXACT);
  out.set_message_incarnation(info.message.incarnation);
  out.set_message_counter(info.message.counter);
  out.set_start(ToWire(info.start));
  out.mutable_expected()->Add(info.expected.begin(), info.expected.end());
  return out.SerializeAsString();
}

absl::StatusOr<GradientInfo> DecodeGradientInfo(const std::string& bytes) {
  PSD_ASSIGN_OR_RETURN(auto in, Parse<v1::GradientHeader>(bytes));
  GradientInfo info;
  PSD_ASSIGN_OR_RETURN(info.pass, GetPass(in));
  if (in.mode() != v1::BACKWARD_MODE_FAST && in.mode() != v1::BACKWARD_MODE_EXACT) {
    return Damaged("its mode");
  }
  info.pass.mode = in.mode() == v1::BACKWARD_MODE_FAST ? BackwardMode::kFast : BackwardMode::kExact;
  info.message = {in.message_incarnation(), in.message_counter()};
  PSD_ASSIGN_OR_RETURN(info.start, FromWire(in.start()));
  if ((info.start == StartBy::kAll) != (info.pass.mode == BackwardMode::kFast)) {
    return Damaged("its mode and how it starts disagree");
  }
  info.expected.assign(in.expected().begin(), in.expected().end());
  return info;
}

std::string EncodeMarkInfo(const MarkInfo& info) {
  v1::MarkRequest out;
  SetPass(info.pass, out);
  out.mutable_messages()->Add(info.messages.begin(), info.messages.end());
  return out.SerializeAsString();
}

absl::StatusOr<MarkInfo> DecodeMarkInfo(const std::string& bytes) {
  PSD_ASSIGN_OR_RETURN(auto in, Parse<v1::MarkRequest>(bytes));
  MarkInfo info;
  PSD_ASSIGN_OR_RETURN(info.pass, GetPass(in));
  info.messages.assign(in.messages().begin(), in.messages().end());
  return info;
}

std::string EncodeAbortInfo(const AbortInfo& info) {
  v1::AbortRequest out;
  out.set_context_incarnation(info.context.incarnation);
  out.set_context_counter(info.context.counter);
  out.set_pass_incarnation(info.pass.incarnation);
  out.set_pass_counter(info.pass.counter);
  out.set_code(static_cast<int32_t>(info.status.code()));
  out.set_message(std::string(info.status.message()));
  return out.SerializeAsString();
}

absl::StatusOr<AbortInfo> DecodeAbortInfo(const std::string& bytes) {
  PSD_ASSIGN_OR_RETURN(auto in, Parse<v1::AbortRequest>(bytes));
  AbortInfo info;
  info.context = ContextOf(in);
  info.pass = {in.pass_incarnation(), in.pass_counter()};
  PSD_RETURN_IF_ERROR(ReadError(in, info.status));
  return info;
}

std::string EncodeGradientAnswer(const GradientAnswer& answer) {
  v1::PassReply out;
  for (const std::string& worker : answer.reached) out.add_reached(worker);
  if (!answer.refused.ok()) {
    out.mutable_refused()->set_code(static_cast<int32_t>(answer.refused.code()));
    out.mutable_refused()->set_message(std::string(answer.refused.message()));
  }
  return out.SerializeAsString();
}

absl::StatusOr<GradientAnswer> DecodeGradientAnswer(const std::string& bytes) {
  PSD_ASSIGN_OR_RETURN(auto in, Parse<v1::PassReply>(bytes));
  if (static_cast<size_t>(in.reached_size()) > kMaxReachedWorkers)
    return Damaged(absl::StrCat(in.reached_size(), " workers reached"));
  for (const std::string& worker : in.reached())
    if (!CheckWorkerName(worker).ok()) return Damaged("the name of a worker reached");
  GradientAnswer answer;
  answer.reached.assign(in.reached().begin(), in.reached().end());
  if (in.has_refused()) PSD_RETURN_IF_ERROR(ReadError(in.refused(), answer.refused));
  return answer;
}

std::string EncodeRelease(const std::vector<GlobalId>& contexts) {
  v1::ReleaseContexts out;
  for (GlobalId context : contexts) {
    out.add_incarnations(context.incarnation);
    out.add_counters(context.counter);
  }
  return out.SerializeAsString();
}

absl::StatusOr<std::vector<GlobalId>> DecodeRelease(const std::string& bytes) {
  PSD_ASSIGN_OR_RETURN(auto in, Parse<v1::ReleaseContexts>(bytes));
  if (in.incarnations_size() != in.counters_size()) return Damaged("its contexts");
  std::vector<GlobalId> contexts;
  for (int i = 0; i < in.counters_size(); ++i) {
    contexts.push_back({in.incarnations(i), in.counters(i)});
  }
  return contexts;
}

}  // namespace psd::dist_autograd
