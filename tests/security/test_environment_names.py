"""A worker's environment is built from nothing: names that hold secrets, load code or lead to the host neither cross nor can be asked for.

The names below are data of this test, gathered from what public scanners and sandboxes look for. The policy lists shapes, not names.
The same names are put into the engine's real environment, and looked for from inside a worker, where workers are tested.
"""

import dataclasses
import random
import string
from collections.abc import Iterator, Mapping

import pytest
import trio

from engine.egress.vault import Vault
from engine.errors import EngineError, PolicyError
from engine.places import data_dir
from engine.policy.grants import BASELINE, Grants
from engine.policy.load import load_policy
from engine.policy.model import Policy
from engine.policy.resolve import Asked, Tightening, resolve
from engine.policy.secrets import CAPABILITIES
from engine.staging.environ import Environ, build

NAMES = """
ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN ANTHROPIC_CUSTOM_HEADERS CLAUDE_CODE_OAUTH_TOKEN OPENAI_API_KEY OPENAI_ORG_ID
AZURE_OPENAI_API_KEY GEMINI_API_KEY GOOGLE_API_KEY GROQ_API_KEY MISTRAL_API_KEY COHERE_API_KEY DEEPSEEK_API_KEY XAI_API_KEY
PERPLEXITY_API_KEY OPENROUTER_API_KEY TOGETHER_API_KEY REPLICATE_API_TOKEN HF_TOKEN HUGGING_FACE_HUB_TOKEN LANGSMITH_API_KEY
LANGCHAIN_API_KEY WANDB_API_KEY PINECONE_API_KEY TAVILY_API_KEY EXA_API_KEY BRAVE_API_KEY SERPAPI_API_KEY E2B_API_KEY
DAYTONA_API_KEY MODAL_TOKEN_ID MODAL_TOKEN_SECRET AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
AWS_BEARER_TOKEN_BEDROCK AWS_WEB_IDENTITY_TOKEN_FILE AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_AUTHORIZATION_TOKEN
AWS_SHARED_CREDENTIALS_FILE AWS_PROFILE GOOGLE_APPLICATION_CREDENTIALS GOOGLE_CREDENTIALS CLOUDSDK_AUTH_ACCESS_TOKEN
AZURE_CLIENT_SECRET AZURE_CLIENT_CERTIFICATE_PATH AZURE_FEDERATED_TOKEN_FILE AZURE_STORAGE_CONNECTION_STRING AZURE_STORAGE_KEY
AZURE_STORAGE_SAS_TOKEN ARM_CLIENT_SECRET IDENTITY_HEADER MSI_SECRET ALIBABA_CLOUD_ACCESS_KEY_SECRET DIGITALOCEAN_ACCESS_TOKEN
HCLOUD_TOKEN LINODE_TOKEN CLOUDFLARE_API_TOKEN CLOUDFLARE_API_KEY CF_API_TOKEN FASTLY_API_TOKEN FLY_API_TOKEN HEROKU_API_KEY
NETLIFY_AUTH_TOKEN VERCEL_TOKEN RENDER_API_KEY GITHUB_TOKEN GH_TOKEN GH_ENTERPRISE_TOKEN GITHUB_PAT ACTIONS_RUNTIME_TOKEN
ACTIONS_ID_TOKEN_REQUEST_TOKEN ACTIONS_ID_TOKEN_REQUEST_URL ACTIONS_CACHE_URL INPUT_GITHUB_TOKEN GITLAB_TOKEN CI_JOB_TOKEN
CI_DEPLOY_PASSWORD CI_REGISTRY_PASSWORD BITBUCKET_TOKEN CIRCLE_TOKEN TRAVIS_TOKEN DRONE_TOKEN BUILDKITE_AGENT_TOKEN
JENKINS_API_TOKEN SONAR_TOKEN CODECOV_TOKEN SNYK_TOKEN NPM_TOKEN NODE_AUTH_TOKEN YARN_NPM_AUTH_TOKEN PYPI_TOKEN TWINE_PASSWORD
UV_PUBLISH_TOKEN UV_INDEX_INTERNAL_PASSWORD POETRY_PYPI_TOKEN_PYPI PIP_INDEX_URL PIP_EXTRA_INDEX_URL CARGO_REGISTRY_TOKEN
GEM_HOST_API_KEY NUGET_API_KEY MAVEN_PASSWORD DOCKER_PASSWORD DOCKER_AUTH_CONFIG DOCKER_CONFIG REGISTRY_AUTH_FILE KUBECONFIG
KUBE_TOKEN VAULT_TOKEN VAULT_SECRET_ID CONSUL_HTTP_TOKEN NOMAD_TOKEN TF_TOKEN_app_example TF_VAR_db_password PULUMI_ACCESS_TOKEN
PULUMI_CONFIG_PASSPHRASE OP_SERVICE_ACCOUNT_TOKEN DOPPLER_TOKEN INFISICAL_TOKEN BW_SESSION SOPS_AGE_KEY AGE_SECRET_KEY
ANSIBLE_VAULT_PASSWORD_FILE SSH_AUTH_SOCK SSH_PRIVATE_KEY SSH_KEY_PASSPHRASE GPG_PASSPHRASE GNUPGHOME GIT_ASKPASS SSH_ASKPASS
GIT_CONFIG_COUNT DATABASE_URL DATABASE_PASSWORD DB_PASS POSTGRES_PASSWORD PGPASSWORD PGPASSFILE MYSQL_PWD MYSQL_ROOT_PASSWORD
MONGODB_URI REDIS_URL REDIS_PASSWORD AMQP_URL KAFKA_SASL_PASSWORD SNOWFLAKE_PASSWORD DATABRICKS_TOKEN ELASTIC_PASSWORD
CLICKHOUSE_PASSWORD SUPABASE_SERVICE_ROLE_KEY FIREBASE_TOKEN STRIPE_SECRET_KEY STRIPE_WEBHOOK_SECRET PLAID_SECRET
TWILIO_AUTH_TOKEN SENDGRID_API_KEY MAILGUN_API_KEY MAILCHIMP_API_KEY SLACK_BOT_TOKEN SLACK_APP_TOKEN SLACK_SIGNING_SECRET
SLACK_WEBHOOK_URL DISCORD_TOKEN TELEGRAM_BOT_TOKEN NOTION_TOKEN LINEAR_API_KEY ATLASSIAN_API_TOKEN JIRA_API_TOKEN SENTRY_DSN
SENTRY_AUTH_TOKEN DATADOG_API_KEY DD_APP_KEY NEW_RELIC_LICENSE_KEY HONEYCOMB_API_KEY GRAFANA_TOKEN OTEL_EXPORTER_OTLP_HEADERS
ROLLBAR_TOKEN OKTA_API_TOKEN AUTH0_CLIENT_SECRET JWT_SECRET SESSION_SECRET COOKIE_SECRET SECRET_KEY SECRET_KEY_BASE
DJANGO_SECRET_KEY FLASK_SECRET_KEY ENCRYPTION_KEY FERNET_KEY MASTER_KEY SIGNING_KEY PRIVATE_KEY TLS_KEY HMAC_KEY SALT PASSPHRASE
PASSWD PWD_SECRET SMTP_PASSWORD LDAP_BIND_PASSWORD http_proxy HTTPS_PROXY ALL_PROXY XAUTHORITY DBUS_SESSION_BUS_ADDRESS KRB5CCNAME
KEYRING_CONTROL_PATH AWS_CONFIG_FILE NETRC CURL_HOME
""".split()

# Shapes of names, with a word of no meaning where a scanner has its wildcard.
SHAPES = """
MYKEYX MYSECRETX MYTOKENX MYPASSWORDX MYPASSWDX MYPASS MYPWD MYCREDENTIAL MYAUTHX MYPRIVATEX MYCERTX MYSIGNINGX MYSALTX MYDSN MY_URI
MYWEBHOOKX MYCOOKIEX MYSESSIONX MYBEARERX MYAPIKEYX MY_API_KEY_X MYACCESSX MY_PAT MYJWTX MY_SAS MY_CONN_STR MYCONNECTIONSTRING CONTRASENA
""".split()

# No secrets, but they make an interpreter, a shell or the C library do what somebody else wants.
LOADERS = """
LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT PYTHONPATH PYTHONSTARTUP PYTHONHOME PYTHONINSPECT PYTHONBREAKPOINT PYTHONWARNINGS PYTHONUSERBASE
MALLOC_PERTURB_ MALLOC_ARENA_MAX GLIBC_TUNABLES BASH_ENV LOCPATH GCONV_PATH NODE_OPTIONS PERL5LIB RUBYOPT DYLD_INSERT_LIBRARIES
SSL_CERT_FILE REQUESTS_CA_BUNDLE OPENSSL_CONF HOSTALIASES
""".split()
WHOLE = "PATH HOME ENV IFS TMPDIR SHELL EDITOR".split()

CANARY = "canary-value-7b2e"
# the same words for every name, so no name can be in them
NOT_GRANTED = "refused.not_granted: environment: 1 of the names asked for are not granted"
NOT_LISTED = "refused.credential_not_listed: the tool asks for a credential capability that required does not list"
REQUIRED = load_policy("required", data_dir("policies"))
RANDOM_NAMES = ["Q" + "".join(random.Random(seed).choices(string.ascii_uppercase + "_", k=24)) for seed in range(50)]


def spellings(name: str) -> Iterator[str]:
    """The name as people, scanners and attackers write it."""
    mixed = "".join(c.upper() if i % 2 else c.lower() for i, c in enumerate(name))
    for spelt in (name, name.lower(), name.upper(), name.title(), name.swapcase(), mixed):
        yield from (spelt, spelt.replace("_", "-"), spelt.replace("_", "."), spelt.replace("_", ""))


def affixed(name: str) -> Iterator[str]:
    """The name with what projects put before and behind it."""
    for spelt in spellings(name):
        yield from (
            before + spelt + behind for before in ("", "MYAPP_", "myapp-") for behind in ("", "_2", "_OLD", "_FILE", "_B64", "_JSON", "3")
        )


def harmless(environment: frozenset[str] = frozenset(), credentials: frozenset[str] = frozenset()) -> Asked:
    """A tool that asks for these variables and capabilities and nothing else."""
    return Asked(name="t", effect="read", timeout_ms=1000, dangerous=False, environment=environment, credentials=credentials)


def granting(**environment: str) -> Policy:
    """The required policy with fixed values and all capabilities."""
    grants = Grants(environment=environment, credentials=frozenset(CAPABILITIES), effects=REQUIRED.grants.effects)
    return dataclasses.replace(REQUIRED, grants=grants)


def refusal(asked: Asked) -> str:
    """The whole text with which the call is refused, code first."""
    with pytest.raises(EngineError) as caught:
        resolve(granting(MYAPP_REGION="eu"), asked, Tightening())
    return str(caught.value)


@pytest.mark.parametrize("name", NAMES + SHAPES + LOADERS)
def test_a_dangerous_name_is_denied_in_every_spelling(name: str) -> None:
    """Case, separators, prefix and suffix do not make another name of it: the shape itself is known."""
    assert [spelt for spelt in affixed(name) if not REQUIRED.denied.matches(spelt)] == []


@pytest.mark.parametrize("name", WHOLE)
def test_a_name_that_only_counts_by_itself_is_denied_in_every_spelling(name: str) -> None:
    """Names such as PATH are common parts of harmless names, so they are denied as they are."""
    assert [spelt for spelt in spellings(name) if not REQUIRED.denied.matches(spelt)] == []


def crossing(policy: Policy, asked: Asked, real: Mapping[str, str]) -> Environ:
    """What a worker gets of an engine that has these variables."""
    vault, resolved = Vault(real), resolve(policy, asked, Tightening())
    trio.run(vault.hold, policy)
    return build(resolved, vault.variables(resolved.families, resolved.credentials))


def test_none_of_them_crosses_from_the_engines_environment() -> None:
    """With all of them set in the engine, a worker still gets four variables."""
    real = {spelt: CANARY for name in NAMES + SHAPES + LOADERS + WHOLE + RANDOM_NAMES for spelt in affixed(name)}
    assert len(real) > 20_000
    assert crossing(REQUIRED, harmless(), real).variables == BASELINE


@pytest.mark.parametrize("capability", sorted(CAPABILITIES))
def test_a_granted_capability_lets_nothing_else_cross(capability: str) -> None:
    """The control: the granted names do arrive, and they are all that does."""
    real = dict.fromkeys([spelt for name in NAMES + LOADERS + RANDOM_NAMES for spelt in affixed(name)], CANARY)
    made = crossing(granting(), harmless(credentials=frozenset({capability})), real)
    assert made.variables == {**BASELINE, **dict.fromkeys(CAPABILITIES[capability], CANARY)}
    assert made.secret_names == set(CAPABILITIES[capability])


@pytest.mark.parametrize("name", NAMES + SHAPES + LOADERS + WHOLE + RANDOM_NAMES)
def test_asking_for_it_is_refused_without_repeating_it(name: str) -> None:
    """As a variable and as a capability, in capitals and in small letters, a name never seen before included."""
    for spelt in (name, name.lower(), f"MYAPP_{name}_2"):
        assert refusal(harmless(environment=frozenset({spelt}))) == NOT_GRANTED
        assert refusal(harmless(credentials=frozenset({spelt}))) == NOT_LISTED


@pytest.mark.parametrize("name", NAMES + SHAPES + LOADERS + WHOLE)
def test_a_policy_that_fixes_it_is_refused(name: str) -> None:
    """The operator's own hand cannot put it back."""
    for spelt in (name, name.lower()):
        with pytest.raises(PolicyError) as caught:
            granting(**{spelt: CANARY})
        assert (caught.value.code, CANARY in str(caught.value)) == ("refused.policy", False)


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY ", " OPENAI_API_KEY", "OPENAI_API_KEY\0", "OPENAI_API_KEY=x", "OPENAI\n", "ОPENAI_API_KEY"]
)
def test_a_malformed_name_is_refused_wherever_it_stands(name: str) -> None:
    """Padding, NUL, '=', line breaks and look-alike letters pass neither as a variable, nor as a capability, nor in a policy."""
    assert refusal(harmless(environment=frozenset({name}))) == NOT_GRANTED
    assert refusal(harmless(credentials=frozenset({name}))) == NOT_LISTED
    with pytest.raises(PolicyError):
        granting(**{name: "x"})


def test_a_name_that_is_granted_and_asked_passes() -> None:
    """The control of every denial above."""
    policy = granting(MYAPP_REGION="eu", MYAPP_STAGE="test")
    made = crossing(policy, harmless(frozenset({"MYAPP_REGION"})), {"MYAPP_REGION": CANARY})
    assert (made.variables, made.secret_names) == ({**BASELINE, "MYAPP_REGION": "eu"}, frozenset())


def test_a_random_name_can_be_granted() -> None:
    """The control for names never seen before: it is the missing grant that refuses them, not their look."""
    name = "Q" + "XW" * 12
    assert crossing(granting(**{name: "1"}), harmless(frozenset({name})), {}).variables == {**BASELINE, name: "1"}
