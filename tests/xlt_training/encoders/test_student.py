from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from xlt_training.encoders.distillation import encoder_config
from xlt_training.encoders.student import IGNORED, Goals, Student, losses, masked_words

PIECES = 60
MODEL = {"layers": 1, "width": 16, "heads": 2, "max_length": 32}


@pytest.fixture
def student() -> Student:
    torch.manual_seed(0)
    made = Student(encoder_config(MODEL, PIECES), teacher_width=8)
    with torch.no_grad():  # fresh biases are zero, and would hide a mistake
        made.language_model.lm_head.decoder.bias.normal_()
    return made


def test_over_all_pieces_masked_words_are_those_of_transformers(student: Student) -> None:
    input_ids = torch.randint(4, PIECES, (3, 7))
    words = torch.randint(4, PIECES, (3, 7))
    hidden = student.vectors(input_ids, torch.ones_like(input_ids)).hidden
    logits = student.language_model(input_ids=input_ids).logits
    expected = F.cross_entropy(logits.flatten(0, 1), words.flatten())
    given = masked_words(
        student, hidden.flatten(0, 1), words.flatten(), input_ids, torch.arange(PIECES)
    )
    torch.testing.assert_close(given, expected)


def test_a_sample_of_pieces_stands_for_all(student: Student) -> None:
    """On average; without the correction it would be too low, as most rivals are missing."""
    input_ids = torch.randint(4, 10, (3, 7))
    words = torch.randint(4, 10, (21,))
    hidden = student.vectors(input_ids, torch.ones_like(input_ids)).hidden.flatten(0, 1)
    every = masked_words(student, hidden, words, input_ids, torch.arange(PIECES)).detach()
    samples = [
        masked_words(student, hidden, words, input_ids, torch.randperm(PIECES)[:20]).detach()
        for _ in range(200)
    ]
    assert float(torch.stack(samples).mean()) == pytest.approx(float(every), abs=0.05)


def test_only_rows_that_were_looked_up_get_a_gradient(student: Student) -> None:
    input_ids = torch.tensor([[0, 5, 6, 2]])
    hidden = student.vectors(input_ids, torch.ones_like(input_ids)).hidden
    loss = masked_words(student, hidden[0, 1:2], torch.tensor([7]), input_ids, torch.tensor([9]))
    loss.backward()
    gradient = student.table.grad
    assert gradient is not None
    assert set(gradient.coalesce().indices()[0].tolist()) == {0, 2, 5, 6, 7, 9}


def test_a_task_is_learnt_from_its_own_rows_and_weighs_as_many_as_they_are(
    student: Student,
) -> None:
    goals = Goals(torch.zeros(16, 8), torch.zeros(1, 8), torch.arange(4))
    input_ids = torch.randint(4, PIECES, (16, 9))
    answers = torch.randint(0, 3, (16,))
    answers[::4] = IGNORED
    nothing = torch.full((16,), IGNORED)
    words, aims, mask = torch.full_like(input_ids, IGNORED), nothing, torch.ones_like(input_ids)

    def terms(labels: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return losses(student, input_ids, mask, words, aims, labels, goals, 0.05)

    optimizer = torch.optim.Adam(
        [p for p in student.parameters() if p is not student.table], lr=3e-3
    )
    labels = {"paraphrase": nothing, "entailment": answers}
    first = terms(labels)
    assert set(first) == {"entailment"}
    halved = {"entailment": torch.where(torch.arange(16) < 8, answers, IGNORED)}
    rest = {"entailment": torch.where(torch.arange(16) < 8, IGNORED, answers)}
    both = terms(halved)["entailment"] + terms(rest)["entailment"]
    torch.testing.assert_close(both, first["entailment"])
    for _ in range(80):
        optimizer.zero_grad()
        terms(labels)["entailment"].backward()
        optimizer.step()
    assert terms(labels)["entailment"] < 0.2 * first["entailment"]
