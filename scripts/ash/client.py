"""The unmodified Python client of Ash against a server of ours, through its public API alone.

    client.py URL KEY AGENT_DIRECTORY

Every check can fail; the first one that does ends it.
"""

import asyncio
import base64
import contextlib
import json
import os
import sys
import uuid

import httpx
from ash_sdk import AshClient, AuthenticatedClient
from ash_sdk.api.agents import get_api_agents_name_files
from ash_sdk.api.health import get_health
from ash_sdk.api.sessions import (
    get_api_sessions_id_events,
    get_api_sessions_id_files,
    get_api_sessions_id_logs,
    get_api_sessions_id_messages,
    patch_api_sessions_id_config,
    post_api_sessions_id_exec,
)
from ash_sdk.models.patch_api_sessions_id_config_body import PatchApiSessionsIdConfigBody
from ash_sdk.models.post_api_sessions_id_exec_body import PostApiSessionsIdExecBody
from ash_sdk.streaming import (
    DoneEvent,
    ErrorEvent,
    MessageEvent,
    SessionStartEvent,
    TextDeltaEvent,
    ToolUseEvent,
    TurnCompleteEvent,
)

AGENT = "tester"


def names(events):
    return [type(event).__name__.removesuffix("Event") for event in events]


class Tests:
    def __init__(self, url, key, directory):
        self.client = AshClient(url, token=key, timeout=60)
        self.low = AuthenticatedClient(
            base_url=url, token=key, raise_on_unexpected_status=True, timeout=httpx.Timeout(60)
        )
        self.url, self.directory = url, directory

    def send(self, session, text, **options):
        return list(self.client.send_message_stream(session.id, text, **options))

    def ask(self, session, text, **options):
        """The answer to a message, which must end as it should."""
        events = self.send(session, text, **options)
        assert isinstance(events[0], SessionStartEvent), events
        assert isinstance(events[-1], DoneEvent), events
        assert not any(isinstance(event, ErrorEvent) for event in events), events
        complete = [event for event in events if isinstance(event, TurnCompleteEvent)]
        assert len(complete) == 1, events
        return complete[0].result

    @contextlib.contextmanager
    def refused(self, status):
        try:
            yield
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == status, error
        else:
            raise AssertionError(f"it was not refused with {status}")

    def deploy(self):
        health = self.client.health()
        assert health["status"] == "ok" and set(health["pool"]) >= {"preWarmHits", "maxCapacity"}
        assert get_health.sync(client=self.low).pool.max_capacity > 0
        bare = AshClient(self.url).health()
        assert bare == {"status": "ok", "version": health["version"]}, bare
        first = self.client.deploy_agent(AGENT, self.directory)
        again = self.client.deploy_agent(AGENT, self.directory)
        assert (first.version, again.version) == (1, 2) and first.id == again.id
        assert [agent.name for agent in self.client.list_agents()] == [AGENT]
        assert self.client.get_agent(AGENT).path == again.path
        files = get_api_agents_name_files.sync(AGENT, client=self.low)
        assert {file.path for file in files.files} >= {"CLAUDE.md", "bridge.mjs"}, files
        with self.refused(404):
            self.client.get_agent("nobody")
        with self.refused(400):
            self.client.deploy_agent("outside", "/etc")
        with self.refused(404):
            self.client.create_session("nobody")

    def talk(self):
        session = self.client.create_session(
            AGENT,
            extra_env={"GREETING": "hello there"},
            model="some-model",
            system_prompt="Be brief.",
            permission_mode="default",
            allowed_tools=["Bash"],
            mcp_servers={"docs": {"url": "http://localhost:1"}},
        )
        assert session.status == "active" and session.agent_name == AGENT
        events = self.send(session, "hi")
        expected = ["SessionStart", "ToolUse", "Message", "TurnComplete", "Message", "Done"]
        assert names(events) == expected, events
        assert events[0].session_id == str(session.id) == events[-1].session_id
        tool = next(event for event in events if isinstance(event, ToolUseEvent))
        assert (tool.name, tool.input) == ("Shell", {"prompt": "hi"})
        message = next(event for event in events if isinstance(event, MessageEvent))
        assert message.data["message"]["content"][1]["text"] == "You said: hi"
        partial = self.send(session, "hi", include_partial_messages=True)
        deltas = [event for event in partial if isinstance(event, TextDeltaEvent)]
        assert [event.delta for event in deltas] == ["You said: hi"], partial
        assert names(partial)[1:3] == ["TextDelta", "Message"], partial
        config = json.loads(self.ask(session, "config", max_turns=3))
        assert (config["model"], config["maxTurns"]) == ("some-model", 3), config
        assert config["allowedTools"] == ["Bash"], config
        other = json.loads(self.ask(session, "config", model="another"))
        assert other["model"] == "another", other

        async def stream():
            return [event async for event in self.client.asend_message_stream(session.id, "ä")]

        assert "You said: ä" in str(asyncio.run(stream()))
        return session

    def check_settings(self, session, when):
        """What a session was made with is there, whatever happened to it meanwhile."""
        said = self.ask(session, '$ echo "$GREETING/$ASH_PERMISSION_MODE"')
        assert said == "hello there/default\n", (when, said)
        assert self.ask(session, "$ cat CLAUDE.md") == "Be brief.", when
        servers = json.loads(self.ask(session, "$ cat .mcp.json"))
        assert servers["mcpServers"]["docs"]["url"] == "http://localhost:1", (when, servers)
        assert self.ask(session, "$ cat kept.txt") == "kept\n", when

    def live(self, session):
        self.ask(session, "$ echo kept > kept.txt")
        self.check_settings(session, "at first")
        assert self.client.pause_session(session.id).status == "paused"
        self.check_settings(session, "resumed by a message")
        self.client.pause_session(session.id)
        assert self.client.resume_session(session.id).status == "active"
        self.check_settings(session, "resumed by a call")
        assert self.client.stop_session(session.id).status == "stopped"
        with self.refused(400):
            self.send(session, "hi")
        assert self.client.resume_session(session.id).status == "active"
        self.check_settings(session, "resumed after a stop")

    def fork(self, session):
        fork = self.client.fork_session(session.id)
        assert fork.parent_session_id == session.id and fork.id != session.id
        self.check_settings(fork, "in a fork")
        self.ask(fork, "$ echo changed > kept.txt")
        assert self.ask(session, "$ cat kept.txt") == "kept\n", "the parent has its own files"
        page = get_api_sessions_id_messages.sync(fork.id, client=self.low)
        asked = [json.loads(one.content)["content"] for one in page.messages if one.role == "user"]
        assert asked[0] == "hi" and len(asked) > 5, asked
        return fork

    def die(self, session):
        events = self.send(session, "die")
        assert names(events) == ["SessionStart", "Error", "Done"], events
        self.check_settings(session, "after the bridge died")
        thrown = self.send(session, "throw")
        assert names(thrown) == ["SessionStart", "Error", "Done"], thrown
        assert "thrown as asked" in thrown[1].error, thrown
        assert self.ask(session, "again") == "You said: again"

    def look(self, session, fork):
        listed = self.client.list_sessions(agent=AGENT)
        assert [one.id for one in listed] == [fork.id, session.id], listed
        assert self.client.list_sessions(agent="nobody") == []
        active = {one.id for one in self.client.list_sessions(status="active")}
        assert session.id in active, active
        assert self.client.list_sessions(status="ended") == []
        assert self.client.get_session(session.id).id == session.id
        page = get_api_sessions_id_messages.sync(session.id, client=self.low, limit=3)
        places = [message.sequence for message in page.messages]
        assert [message.role for message in page.messages] == ["user", "assistant", "assistant"]
        rest = get_api_sessions_id_messages.sync(session.id, client=self.low, after=places[-1])
        assert rest.messages[0].role == "user" and rest.messages[0].sequence > places[-1]
        events = get_api_sessions_id_events.sync(session.id, client=self.low, limit=1000)
        kinds = {event.type_ for event in events.events}
        assert kinds >= {"text", "tool_start", "turn_complete", "lifecycle", "error"}, kinds
        order = [event.sequence for event in events.events]
        assert order == sorted(set(order)), order
        ran = post_api_sessions_id_exec.sync(
            session.id, client=self.low, body=PostApiSessionsIdExecBody(command="cat kept.txt; exit 3")
        )
        assert (ran.exit_code, ran.stdout) == (3, "kept\n"), ran
        command = 'echo "$ASH_SESSION_ID $ASH_WORKSPACE_DIR $GREETING"; test -S "$ASH_BRIDGE_SOCKET"'
        ran = post_api_sessions_id_exec.sync(
            session.id, client=self.low, body=PostApiSessionsIdExecBody(command=command)
        )
        expected = f"{session.id} /workspace hello there\n"
        assert (ran.exit_code, ran.stdout) == (0, expected), ran
        self.look_at_large_file(session)
        files = get_api_sessions_id_files.sync(session.id, client=self.low)
        assert "kept.txt" in {file.path for file in files.files}, files
        logs = get_api_sessions_id_logs.sync(session.id, client=self.low)
        assert any("the bridge listens" in line.text for line in logs.logs), logs
        body = PatchApiSessionsIdConfigBody(model="third")
        patch_api_sessions_id_config.sync(session.id, client=self.low, body=body)
        assert json.loads(self.ask(session, "config"))["model"] == "third"

    def look_at_large_file(self, session):
        """A file of the largest size that Ash takes. Its client has no call for that."""
        content = os.urandom(1 << 20) * 50
        files = [{"path": "large", "content": base64.b64encode(content).decode()}]
        url = f"{self.url}/api/sessions/{session.id}/files"
        headers = {"Authorization": f"Bearer {self.client.token}"}
        sent = httpx.post(url, json={"files": files}, headers=headers, timeout=60).json()
        assert sent["files"] == [{"path": "large", "written": True, "size": 50 << 20}], sent
        assert httpx.get(f"{url}/large", headers=headers, timeout=60).content == content

    def end(self, session, fork):
        for one in (session, fork):
            assert self.client.end_session(one.id).status == "ended"
            assert self.client.end_session(one.id).status == "ended", "repeatable"
            assert self.client.get_session(one.id).status == "ended"
        with self.refused(400):
            self.send(session, "hi")
        with self.refused(410):
            self.client.resume_session(session.id)
        with self.refused(404):
            self.client.get_session(uuid.uuid4())
        with self.refused(400):
            self.client.get_session("nonsense")
        with self.refused(401):
            AshClient(self.url, token="wrong").list_agents()
        assert len(self.client.list_sessions(status="ended")) == 2
        self.client.delete_agent(AGENT)
        assert self.client.list_agents() == []
        with self.refused(404):
            self.client.delete_agent(AGENT)


def main():
    tests = Tests(*sys.argv[1:])
    tests.deploy()
    session = tests.talk()
    tests.live(session)
    fork = tests.fork(session)
    tests.die(session)
    tests.look(session, fork)
    tests.end(session, fork)
    print("the Python client of Ash: deploy, create, send, stream, pause, resume, stop, fork, list, end")


if __name__ == "__main__":
    main()
