// Tensors from one rank to another: the receiver asks, and the sender answers with the tensor when
// it makes its send.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/services/collectives/collective_codec.h"
#include "core/services/collectives/collective_group.h"
#include "core/tensor/tensor_codec.h"

namespace psd::services {
namespace {

// How much longer than its receive a question may take. So the ledger names the late rank before
// the question fails.
constexpr absl::Duration kQuestionGrace = absl::Seconds(10);

}  // namespace

Future<Unit> CollectiveGroup::Send(const Tensor& tensor, int to, const std::string& label,
                                   absl::Duration timeout) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Future<Unit>::Ready(failure());
  if (!tensor.defined())
    return Future<Unit>::Ready(absl::InvalidArgumentError("send: there is no tensor"));
  absl::StatusOr<Tensor> contiguous = tensor.ToHost(uses_.memory.get());
  if (contiguous.ok()) contiguous = (*std::move(contiguous)).Contiguous(uses_.memory.get());
  if (!contiguous.ok()) return Future<Unit>::Ready(contiguous.status());
  absl::Status fits = CheckWhole("send", {contiguous->dtype(), contiguous->shape()});
  if (!fits.ok()) return Future<Unit>::Ready(std::move(fits));
  Sending sending{*std::move(contiguous), {}};
  std::optional<TakeAnswer> asked;
  TransferLedger::Key key{to, 0};
  absl::Status wrong;
  {
    MutexLock lock(mutex_);
    if (!ledger_.failure().ok()) return Future<Unit>::Ready(ledger_.failure());
    bool give = false;
    const absl::StatusOr<uint64_t> number =
        transfers_.Send(to, label, uses_.clock.Now(), timeout, &give);
    if (!number.ok() && !absl::IsFailedPrecondition(number.status()))
      return Future<Unit>::Ready(number.status());
    if (!number.ok()) {
      wrong = number.status();
    } else {
      key.second = *number;
      if (give) {
        asked = std::move(asking_.extract(key).mapped());
      } else {
        wrong = Hold(key, sending);
      }
    }
  }
  if (asked.has_value()) Give(*asked, key, sending);
  if (!wrong.ok()) {
    Fail(wrong);
    sending.sent.Set(std::move(wrong));
  }
  Arm();
  return sending.sent.future();
}

absl::Status CollectiveGroup::Hold(const TransferLedger::Key& key, const Sending& sending) {
  sending_.emplace(key, sending);
  return ledger_.HasLeft(key.first) ? transfers_.Left(key.first) : absl::OkStatus();
}

Future<Tensor> CollectiveGroup::Receive(int from, const std::string& label,
                                        absl::Duration timeout) {
  const rref::Gate::Entry entry(*gate_);
  if (!entry.open()) return Future<Tensor>::Ready(failure());
  const Promise<Tensor> received;
  v1::CollectiveTake message;
  absl::Status wrong;
  {
    MutexLock lock(mutex_);
    if (!ledger_.failure().ok()) return Future<Tensor>::Ready(ledger_.failure());
    const absl::StatusOr<uint64_t> number =
        transfers_.Receive(from, label, uses_.clock.Now(), timeout);
    if (!number.ok()) return Future<Tensor>::Ready(number.status());
    receiving_.emplace(TransferLedger::Key{from, *number}, Receiving{received, {}});
    message.set_number(*number);
    if (ledger_.HasLeft(from)) wrong = transfers_.NotSent(from, *number);
  }
  if (!wrong.ok()) {
    Fail(wrong);
    return received.future();
  }
  message.set_generation(members_.generation);
  message.set_label(label);
  const rpc::Call question =
      StartMessage(kTakeTensor.info, from, rpc::PlainPayload(message), timeout + kQuestionGrace);
  received.HelpLike(question.reply());
  bool over = false;
  {
    MutexLock lock(mutex_);
    const auto found = receiving_.find({from, message.number()});
    over = found == receiving_.end();
    if (!over) found->second.question = question;
  }
  if (over) question.Cancel();  // the group has failed meanwhile
  question.reply().OnReady([self = shared_from_this(), from,
                            number = message.number()](const absl::StatusOr<rpc::Reply>& given) {
    if (!given.ok()) return self->NotReceived(from, number, given.status());
    const absl::Status taken = self->Received(from, number, *given);
    if (taken.ok()) return;
    self->CannotTake(from, Annotate(taken, absl::StrCat("tensor ", number, " from ",
                                                        self->members_.workers[from].name)));
  });
  Arm();
  return received.future();
}

// A rank whose group is gone refuses questions. If it left in order, that is the reason. If this
// rank has no memory for the answer, the other one is not to blame.
void CollectiveGroup::NotReceived(int from, uint64_t number, const absl::Status& why) {
  const auto detail = GetDetail(why);
  if (detail.has_value() && detail->worker == members_.workers[members_.rank].name)
    return GiveUp(why);
  absl::Status not_sent;
  {
    MutexLock lock(mutex_);
    if (ledger_.HasLeft(from)) not_sent = transfers_.NotSent(from, number);
  }
  if (not_sent.ok()) return Lost(from, why);
  Fail(not_sent);
}

// The failure of the group at the other rank is its failure here too, whichever rank has caused it.
void CollectiveGroup::EndedBefore(int from, uint64_t number, const v1::CollectiveEnd& end) {
  if (!end.left()) return Fail(DecodeFailure(end));
  absl::Status not_sent;
  {
    MutexLock lock(mutex_);
    not_sent = transfers_.NotSent(from, number);
  }
  Fail(not_sent);
}

absl::Status CollectiveGroup::Received(int from, uint64_t number, const rpc::Reply& reply) {
  PSD_ASSIGN_OR_RETURN(const auto message,
                       rpc::Wire<v1::CollectiveTaken>::ParseReply(reply, kTakeTensor.info.name));
  if (message.has_end()) {
    EndedBefore(from, number, message.end());
    return absl::OkStatus();
  }
  PSD_ASSIGN_OR_RETURN(const TensorForm form, DecodeForm(message));
  const std::vector<Buffer>& buffers = reply.payload.buffers;
  if (buffers.size() != (form.NumBytes() > 0 ? 1 : 0))
    return absl::InvalidArgumentError(absl::StrCat("a tensor in ", buffers.size(), " buffers"));
  absl::StatusOr<Tensor> tensor =
      buffers.empty() ? Tensor::Empty(form.shape, form.dtype)
                      : DecodeTensor({form.shape, form.dtype, form.NumBytes()}, buffers[0]);
  PSD_RETURN_IF_ERROR(tensor.status());
  std::optional<Promise<Tensor>> received;
  {
    MutexLock lock(mutex_);
    transfers_.Got(from, number);
    const auto found = receiving_.find({from, number});
    if (found == receiving_.end()) return absl::OkStatus();  // the group has failed
    received = std::move(found->second.received);
    receiving_.erase(found);
  }
  received->Set(std::move(tensor));
  return absl::OkStatus();
}

void CollectiveGroup::Give(const TakeAnswer& answer, const TransferLedger::Key& key,
                           const Sending& sending) {
  const absl::Status applied = rpc::BeginApply(*answer.call());
  if (!applied.ok()) {
    answer(applied);
    return NotTaken(key, sending);
  }
  {
    MutexLock lock(mutex_);
    transfers_.Given(key.first, key.second);
  }
  v1::CollectiveTaken message;
  EncodeForm({sending.tensor.dtype(), sending.tensor.shape()}, message);
  rpc::Contents contents{rpc::PlainPayload(message), {}};
  if (sending.tensor.NumBytes() > 0) contents.payload.buffers.push_back(sending.tensor.AsBuffer());
  answer(std::move(contents));
  sending.sent.Set(Unit{});
}

// This rank has not heard yet how the group has ended there. The send fails when it does, or at the
// send's deadline.
void CollectiveGroup::NotTaken(const TransferLedger::Key& key, const Sending& sending) {
  absl::Status ended;
  {
    MutexLock lock(mutex_);
    transfers_.NotTaken(key.first, key.second);
    ended = ledger_.failure().ok() ? Hold(key, sending) : ledger_.failure();
  }
  if (!ended.ok()) {
    Fail(ended);
    sending.sent.Set(std::move(ended));
  }
  Arm();
}

absl::Status CollectiveGroup::ServeTake(int from, const v1::CollectiveTake& request,
                                        const TakeAnswer& answer) {
  const TransferLedger::Key key{from, request.number()};
  std::optional<Sending> given;
  std::optional<v1::CollectiveEnd> end;
  absl::Status differs;
  {
    MutexLock lock(mutex_);
    if (!ledger_.failure().ok()) {
      end = End();
    } else {
      const absl::StatusOr<bool> give = transfers_.Asked(from, request.number(), request.label());
      if (absl::IsInvalidArgument(give.status())) return give.status();
      differs = give.status();
      if (give.ok() && *give) given = std::move(sending_.extract(key).mapped());
      if (give.ok() && !*give) asking_.emplace(key, answer);
    }
  }
  if (!differs.ok()) {
    Fail(differs);
    MutexLock lock(mutex_);
    end = End();
  }
  if (end.has_value()) {
    EndQuestions({{key, answer}}, *end);
    return absl::OkStatus();
  }
  if (given.has_value()) {
    Give(answer, key, *given);
    return absl::OkStatus();
  }
  // The other rank cancels its request when its group fails, and needs no answer then.
  answer.call()->OnCancel([weak = weak_from_this(), key] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    std::optional<TakeAnswer> cancelled;
    {
      MutexLock lock(self->mutex_);
      const auto found = self->asking_.find(key);
      if (found == self->asking_.end()) return;
      cancelled = std::move(found->second);
      self->asking_.erase(found);
      self->transfers_.Forget(key.first, key.second);
    }
    (*cancelled)(absl::CancelledError("the receive was given up"));
  });
  return absl::OkStatus();
}

absl::Status CollectiveGroup::LeftTransfers(int rank, std::vector<TakeAnswer>& unanswered) {
  const absl::Status waits = transfers_.Left(rank);
  const auto first = asking_.lower_bound({rank, 0});
  const auto last = asking_.lower_bound({rank + 1, 0});
  for (auto each = first; each != last; ++each) unanswered.push_back(std::move(each->second));
  asking_.erase(first, last);
  return waits;
}

void CollectiveGroup::EndQuestions(const std::map<TransferLedger::Key, TakeAnswer>& questions,
                                   const v1::CollectiveEnd& end) {
  for (const auto& [key, answer] : questions) {
    if (const absl::Status applied = rpc::BeginApply(*answer.call()); !applied.ok()) {
      answer(applied);
      continue;
    }
    v1::CollectiveTaken message;
    *message.mutable_end() = end;
    answer(rpc::Contents{rpc::PlainPayload(message), {}});
  }
}

void CollectiveGroup::FailTransfers(const absl::Status& failure, const v1::CollectiveEnd& end) {
  std::map<TransferLedger::Key, Sending> sending;
  std::map<TransferLedger::Key, Receiving> receiving;
  std::map<TransferLedger::Key, TakeAnswer> asking;
  {
    MutexLock lock(mutex_);
    sending.swap(sending_);
    receiving.swap(receiving_);
    asking.swap(asking_);
  }
  for (const auto& [key, each] : sending) each.sent.Set(failure);
  for (const auto& [key, each] : receiving) {
    each.received.Set(failure);
    each.question.Cancel();
  }
  EndQuestions(asking, end);
}

}  // namespace psd::services
