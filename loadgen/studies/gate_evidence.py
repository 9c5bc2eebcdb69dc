"""Answers of two run folders side by side: the gate's evidence, its verdict, and the study's words for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.quality import answer_file, evidence_table, gate
from analysis.quality.answer_file import AnswerRecord
from analysis.quality.answers import Answer, PromptEvidence, Side, evidence
from analysis.quality.gate import GateRule
from analysis.quality.gate_verdict import Called, GateVerdict
from analysis.results.asked import describe
from analysis.results.runs import load_run
from analysis.results.summary import EXIT_DEGRADED, EXIT_OK, EXIT_OPEN
from analysis.results.types.study_verdict import StudyVerdict
from conf import Experiment
from conf.specs.quality import Quality
from conf.trees import differences

KIND = "quality"
CODES: dict[Called, int] = {"SAME": EXIT_OK, "DEGRADED": EXIT_DEGRADED, "UNDECIDED": EXIT_OPEN}


def verdict_on_folders(a: Path, b: Path) -> StudyVerdict:
    """The verdict on answers on record, by the margins of A's configuration; nothing is written.

    Raises OSError, ArrowException or ValueError as `folder_evidence` does, and RunError for a folder without
    a run.
    """
    runs = load_run(a), load_run(b)
    gate_verdict = gate.judge(folder_evidence(a, b), GateRule.of(runs[0].config.quality))
    return with_gate_verdict(
        StudyVerdict(
            study=KIND,
            verb=KIND,
            asked=describe(runs[0].config),
            names=(str(a), str(b)),
            parts=(),
            exit_code=None,
            valid=True,
            evidence=f"answers on record in {a} and {b}",
        ),
        gate_verdict,
        runs[0].config,
        runs[1].config,
    )


def with_gate_verdict(
    verdict: StudyVerdict, gate_verdict: GateVerdict, a: Experiment, b: Experiment
) -> StudyVerdict:
    """The study's verdict with that of the gate, its exit code and its reason."""
    return replace(
        verdict,
        quality=gate_verdict,
        differs={key: tuple(values) for key, values in differences(a, b).items()},
        passed=gate_verdict.verdict == "SAME",
        exit_code=CODES[gate_verdict.verdict],
        reason="" if gate_verdict.verdict == "SAME" else "; ".join(gate_verdict.why),
    )


def judged_study(path: Path, quality: Quality) -> GateVerdict:
    """The verdict on both parts of the study in `path`, its evidence written there.

    Raises as `folder_evidence` does.
    """
    evidence = folder_evidence(path / "a", path / "b")
    evidence_table.write(evidence, path / evidence_table.FILE)
    return gate.judge(evidence, GateRule.of(quality))


def folder_evidence(base: Path, candidate: Path) -> list[PromptEvidence]:
    """The evidence in two folders with answers.

    Raises OSError, ArrowException or ValueError for folders without comparable answers.
    """
    return evidence_of(*(answer_file.read(path / answer_file.FILE) for path in (base, candidate)))


def evidence_of(a: Sequence[AnswerRecord], b: Sequence[AnswerRecord]) -> list[PromptEvidence]:
    """The evidence of every prompt that B was asked. Raises ValueError if A was asked others."""
    ours = by_prompt(a)
    return [evidence_on(one, ours) for one in b if one.repeat == 0]


def evidence_on(of_b: AnswerRecord, of_a: Mapping[tuple[int, int], AnswerRecord]) -> PromptEvidence:
    base, again = (of_a.get((of_b.prompt, repeat)) for repeat in (0, 1))
    if base is None or again is None or base.digest != of_b.digest:
        raise ValueError(f"A was not asked prompt {of_b.prompt} of B")
    answers: dict[Side, Answer | None] = {
        "base": base.answer,
        "again": again.answer,
        "candidate": of_b.answer,
    }
    return evidence(of_b.prompt, {side: answer for side, answer in answers.items() if answer})


def by_prompt(answers: Sequence[AnswerRecord]) -> dict[tuple[int, int], AnswerRecord]:
    return {(one.prompt, one.repeat): one for one in answers}
